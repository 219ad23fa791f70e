#!/bin/sh
# fuzz.sh TIME [I/N] runs every fuzz test for that time, one after the other; or of each N of them the one with
# number I, from 1, for N machines that share them.
#
# New inputs are minimized a little only: by default that takes up to a minute each, in which nothing else is tried.
# Before Go 1.27 a fuzz test may fail for nothing but the end of its time (golang/go#75804).
go=${GO:-go} log=build/fuzz-log.txt share=${2:-1/1} number=0
mkdir -p build
$go test -list '^Fuzz' work >build/fuzz.txt || exit
while read -r word pkg _; do
	case $word in
	Fuzz*) tests="$tests $word" ;;
	ok)
		for test in $tests; do
			number=$((number + 1))
			[ $((number % ${share#*/})) = $((${share%/*} % ${share#*/})) ] || continue
			echo "== $pkg $test"
			$go test -run '^$' -fuzz "^$test\$" -fuzztime "$1" -fuzzminimizetime 10x "$pkg" >$log 2>&1 </dev/null ||
				{ grep -q '^    context deadline exceeded$' $log && ! grep -q 'Failing input' $log; } ||
				{ cat $log; exit 1; }
			grep execs $log | tail -n 1
		done
		tests=
		;;
	esac
done <build/fuzz.txt
