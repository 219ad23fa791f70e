#!/usr/bin/env bash
# Makes rxe0 and siw0 on this machine's own kernel, as the lab has them, and reports devices=true to
# GitHub. Azure's kernel has no rxe; it is built from the source of the running kernel. A machine
# that cannot have it is no failure.
set -euo pipefail

skip() {
	echo "::notice title=no rxe::$1"
	echo devices=false >>"$GITHUB_OUTPUT"
	exit 0
}

kernel=$(uname -r)
sudo apt-get update -q
sudo apt-get install -yq --no-install-recommends iproute2 "linux-modules-extra-$kernel" ||
	sudo apt-get install -yq --no-install-recommends iproute2

build() {
	sudo sed -i 's/^Types: deb$/Types: deb deb-src/' /etc/apt/sources.list.d/ubuntu.sources
	sudo apt-get update -q
	sudo apt-get install -yq --no-install-recommends build-essential dpkg-dev libelf-dev "linux-headers-$kernel"
	mkdir -p build/rxe && cd build/rxe
	apt-get source -q "linux-modules-$kernel=$(dpkg-query -W -f '${Version}' "linux-modules-$kernel")"
	cd linux-*/drivers/infiniband/sw/rxe
	make -C "/lib/modules/$kernel/build" M="$PWD" CONFIG_RDMA_RXE=m modules
	sudo modprobe -a ib_uverbs ip6_udp_tunnel udp_tunnel
	sudo insmod rdma_rxe.ko
}

sudo modprobe rdma_rxe || (set -e; build) || skip "kernel $kernel: neither packaged nor built"
sudo modprobe -a siw rdma_ucm || skip "kernel $kernel has no siw or no rdma_ucm"
# The runner's network card may be an RDMA device as well. The tests expect two.
sudo modprobe -r mana_ib mlx5_ib || true

sudo ip link add v0 type veth peer name v1
sudo ip link set v1 up
sudo ip link add d0 type dummy
for link in v0 d0; do
	sudo sysctl -qw "net.ipv6.conf.$link.accept_dad=0"
	sudo ip link set "$link" up
done
sudo ip addr add 10.9.0.1/24 dev v0
sudo ip addr add fd00:9::1/64 dev v0
sudo ip addr add 10.9.1.1/24 dev d0
sudo ip addr add fd00:9:1::1/64 dev d0
sudo rdma link add rxe0 type rxe netdev v0
sudo rdma link add siw0 type siw netdev d0
rdma link
echo devices=true >>"$GITHUB_OUTPUT"
