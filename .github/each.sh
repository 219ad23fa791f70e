#!/bin/sh
# each.sh "VALUE ..." COMMAND runs a shell command for each value of $v. It continues after a failure, and fails in the
# end, naming the values.
failed=
for v in $1; do
	echo "== $v"
	v=$v sh -c "$2" || failed="$failed $v"
done
test -z "$failed" || { echo "failed on:$failed"; exit 1; }
