#!/bin/sh
# flakes.sh N PACKAGE ... runs tests N times with each GOMAXPROCS of 1, 2 and 8, shuffled, 8 packages at a time beside 8
# programs that keep the processors busy, and then 30 beside 30. What fails here and not alone waits for a time where it
# should wait for an event.
go=${GO:-go} n=$1 out=$PWD/build/flakes busy='' failed=''
shift
trap 'kill $busy 2>/dev/null' EXIT
trap 'exit 1' INT TERM
rm -rf "$out" && mkdir -p "$out" && $go test -c -o "$out/" "$@" || exit
dirs=$($go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' "$@")
for load in 8 30; do
	for _ in $(seq "$load"); do
		while :; do :; done &
		busy="$busy $!"
	done
	for _ in $(seq "$n"); do
		for procs in 1 2 8; do
			for dir in $dirs; do echo "$dir $procs"; done
		done
	done | OUT="$out" xargs -L 1 -P "$load" sh -c 'cd "$0" && "$OUT/${0##*/}.test" -test.cpu "$1" -test.shuffle on -test.timeout 30m >"$OUT/$$.txt" 2>&1 ||
		{ echo "== $0, GOMAXPROCS=$1"; cat "$OUT/$$.txt"; exit 1; }; rm "$OUT/$$.txt"' || failed="$failed $load"
	kill $busy
	busy=''
	echo "$((3 * n)) runs of each, $load at a time, beside $load"
done
test -z "$failed" || { echo "failed beside:$failed"; exit 1; }
