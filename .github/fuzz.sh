#!/bin/sh
# fuzz.sh TIME [I/N] runs every fuzz test for that time on one processor, as many at a time as there are processors; or
# of each N of them the one with number I, from 1, for N machines that share them.
#
# New inputs are minimized a little only: by default that takes up to a minute each, in which nothing else is tried.
# Before Go 1.27 a fuzz test may fail for nothing but the end of its time (golang/go#75804).
export go="${GO:-go}" time="$1"
share=${2:-1/1}
mkdir -p build/fuzz
$go test -list '^Fuzz' work >build/fuzz.txt || exit
awk -v i="${share%/*}" -v n="${share#*/}" '
	/^Fuzz/ { tests[++found] = $1 }
	/^ok/ { for (k = 1; k <= found; k++) if (++number % n == i % n) print $2, tests[k]; found = 0 }' build/fuzz.txt |
	xargs -P "$(nproc)" -L 1 sh -c '
		log=build/fuzz/$(echo "${1#github.com/goverbs/}.$2" | tr / -)
		$go test -run "^\$" -fuzz "^$2\$" -fuzztime "$time" -fuzzminimizetime 10x -parallel 1 "$1" >$log 2>&1 </dev/null && ! grep -q "no fuzz tests to fuzz" $log ||
			{ grep -q "^    context deadline exceeded$" $log && ! grep -q "Failing input" $log; } ||
			{ echo "== $1 $2"; cat $log; exit 255; } # at which xargs starts no more
		echo "== $1 $2: $(grep execs $log | tail -n 1)"' fuzz
