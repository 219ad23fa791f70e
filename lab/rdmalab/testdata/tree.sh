#!/bin/sh
# Tries the lab on another distribution: tree.sh bookworm|trixie|jammy|noble. It makes a minimal
# tree of it, runs setup.sh there as root, and then fetches a kernel and runs tests as an ordinary
# user. It is run as root, from the top of this repository, and needs debootstrap, and
# Debian 13's ubuntu-archive-keyring for Ubuntu. Go and its module cache are those of this machine.
set -eu
suite=$1
case $suite in
jammy | noble) mirror=http://archive.ubuntu.com/ubuntu script=/usr/share/debootstrap/scripts/gutsy ;; # of all Ubuntus
*) mirror=http://deb.debian.org/debian script= ;;
esac
cache=${VERBS_CACHE:-$HOME/.cache/goverbs}
tree=$cache/tree-$suite
if [ ! -d "$tree" ]; then
	rm -rf "$tree.new"
	debootstrap --variant=minbase --include=ca-certificates,sudo "$suite" "$tree.new" "$mirror" $script
	mv "$tree.new" "$tree"
fi
export tree repository="$PWD" go="$(go env GOROOT)" modules="$(go env GOMODCACHE)"
# An ordinary user may make namespaces in a root of its own, but not in a chroot.
exec unshare --mount --pid --fork sh -eu -c '
	mount --bind "$tree" "$tree"
	cd "$tree"
	mkdir -p repository go modules proc sys dev old home
	for pair in "$repository:repository" "$go:go" "$modules:modules"; do
		mount --bind "${pair%:*}" "${pair#*:}"
		mount -o remount,bind,ro "${pair#*:}"
	done
	mount --rbind /sys sys
	mount --rbind /dev dev
	cp /etc/resolv.conf etc/resolv.conf
	pivot_root . old
	cd /
	mount -t proc proc /proc
	umount -l /old
	id tester 2>/dev/null || useradd -m tester
	export PATH=/go/bin:/usr/sbin:/usr/bin:/sbin:/bin GOFLAGS=-buildvcs=false GOMODCACHE=/modules GOPROXY=off GOTOOLCHAIN=local HOME=/root
	export RDMALAB=/repository/lab/rdmalab VERBS_CACHE=/home/tester/cache
	cd /repository
	install -d -o tester "$VERBS_CACHE"
	grep PRETTY /etc/os-release
	# The last steps of setup.sh are for the user.
	sed "/^CGO_ENABLED/,\$d" lab/rdmalab/setup.sh | sh
	sed -n "/^CGO_ENABLED/,\$p" lab/rdmalab/setup.sh >/tmp/user.sh
	echo "RDMATEST=require go test -count 1 -v -exec rdmalab -run TestConnect ./rdmatest" >>/tmp/user.sh
	setpriv --reuid tester --regid tester --init-groups env HOME=/home/tester sh -eux /tmp/user.sh
'
