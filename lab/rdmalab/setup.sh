#!/bin/sh
# Prepares a machine for go test -exec rdmalab: Debian, Ubuntu or Fedora, with Go, as root or as a
# user of sudo. RDMALAB is the package to install, a version or ./lab/rdmalab within a checkout,
# LAB_KERNEL the kernel to fetch, and LAB_NIC the adapters whose QEMU is fetched as well.
set -eu
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
if command -v apt-get >/dev/null; then
	$sudo apt-get update
	$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends qemu-system-x86 kmod iproute2 xz-utils zstd
else
	$sudo dnf install -y qemu-system-x86-core kmod iproute xz zstd
fi
# Users may use KVM, and make the namespaces in which siw is built.
[ ! -e /dev/kvm ] || $sudo chmod 666 /dev/kvm
for setting in kernel.apparmor_restrict_unprivileged_userns=0 kernel.unprivileged_userns_clone=1; do
	[ ! -e "/proc/sys/$(echo "${setting%=*}" | tr . /)" ] || $sudo sysctl -w "$setting"
done
CGO_ENABLED=0 go install "${RDMALAB:-github.com/goverbs/verbs/lab/rdmalab@latest}"
PATH=$PATH:$(go env GOPATH)/bin
rdmalab fetch
