#!/bin/sh
# flakes.sh N PACKAGE ... runs tests N times, shuffled, with GOMAXPROCS 1, 2 and 8, beside 8 and then 30 programs that
# keep the processors busy. What fails here and not alone waits for a time where it should wait for an event.
go=${GO:-go} n=$1 busy='' failed=''
shift
trap 'kill $busy 2>/dev/null' EXIT
trap 'exit 1' INT TERM
$go test -run '^$' "$@" >/dev/null || exit # without the load
for load in 8 30; do
	echo "== beside $load"
	for _ in $(seq "$load"); do
		while :; do :; done &
		busy="$busy $!"
	done
	$go test -count "$n" -shuffle on -cpu 1,2,8 -timeout 2h "$@" || failed="$failed $load"
	kill $busy
	busy=''
done
test -z "$failed" || { echo "failed beside:$failed"; exit 1; }
