#!/bin/sh
# Loads a valkey-server in the lab over RDMA, for a duration, and over TCP: load.sh [10m]. It is run
# from the top of this repository, after make build and the command server.
set -eu
build/valkey-server/valkey-server --protected-mode no --bind 10.9.0.1 --port 6380 --rdma-bind 10.9.0.1 --rdma-port 6379 --save '' >/dev/null &
trap "kill $!" EXIT
for try in 1 2 3 4 5 6 7 8 9 10; do # until it listens
	! build/valkey -addr 10.9.0.1:6379 -clients 1 -for 1ms >/dev/null 2>&1 || break
	sleep 1
done
for clients in 1 8; do
	echo "RDMA, $clients at a time:"
	build/valkey -addr 10.9.0.1:6379 -clients $clients -size 100 -for 10s
	echo "TCP, $clients at a time:"
	build/valkey -tcp -addr 10.9.0.1:6380 -clients $clients -size 100 -for 10s
done
echo "RDMA, 8 at a time, up to 3 MiB:"
build/valkey -addr 10.9.0.1:6379 -clients 8 -size 3145728 -for 20s
echo "RDMA, 8 at a time, up to 64 KiB, ${1:-10m}:"
build/valkey -addr 10.9.0.1:6379 -clients 8 -for "${1:-10m}"
