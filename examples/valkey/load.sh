#!/bin/sh
# Loads a valkey-server in the lab, from the top of this repository, after make build and the
# command server:
#
#	load.sh compare DURATION    over RDMA and over TCP
#	load.sh last DURATION       over RDMA, with large values as well
set -eu
build/valkey-server/valkey-server --protected-mode no --bind 10.9.0.1 --port 6380 --rdma-bind 10.9.0.1 --rdma-port 6379 --save '' >/dev/null &
trap "kill $!" EXIT
for try in $(seq 100); do # until it listens
	! build/valkey -addr 10.9.0.1:6379 -clients 1 -for 1ms >/dev/null 2>&1 || break
	sleep 0.1
done
case $1 in
compare)
	for clients in 1 8; do
		echo "RDMA, $clients at a time:"
		build/valkey -addr 10.9.0.1:6379 -clients $clients -size 100 -for "$2"
		echo "TCP, $clients at a time:"
		build/valkey -tcp -addr 10.9.0.1:6380 -clients $clients -size 100 -for "$2"
	done
	;;
last)
	echo "RDMA, 8 at a time, up to 3 MiB, 20s:"
	build/valkey -addr 10.9.0.1:6379 -clients 8 -size 3145728 -for 20s
	echo "RDMA, 8 at a time, up to 64 KiB, $2:"
	build/valkey -addr 10.9.0.1:6379 -clients 8 -for "$2"
	;;
*)
	echo "load.sh: compare or last, not $1" >&2
	exit 2
	;;
esac
