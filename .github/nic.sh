#!/bin/sh
# Runs tests on emulated adapters, on each kernel of a list:
#
#	nic.sh driver "KERNEL ..."                  those of its driver and its faults
#	nic.sh table nic "KERNEL ..." [FLAG ...]    those of tests/nic, with releases of rdma-core and kinds of adapters
#	nic.sh table adapter-table "KERNEL ..." [FLAG ...]
#	                                            those of PKGS, in which the adapter replaces each device of the lab
#
# A table of the results is then build/nic.md or build/adapter-table.md.
failed=
lab() { build/lab --kernel "$kernel" --nic "$@"; }

driver() {
	for kernel in $1; do
		echo "== $kernel"
		build/lab --kernel "$kernel" fetch &&
			lab connectx test -timeout 20m ./cmd/verbs/internal/abicheck ./provider/mlx5 &&
			LABTEST_DEVICE=mlx5_0 lab connectx test -timeout 20m -run 'TestPingPong$|TestAdapterRemoval' ./tests/interop ./tests/faults/harness &&
			lab connectx,connectx-ib test -timeout 20m -run TestAdapter ./tests/rdmadev &&
			lab erdma test -timeout 20m -run 'TestAdapter|Fault' ./tests/rdmadev ./provider/erdma || failed="$failed $kernel"
	done
	# The newest release of libmlx5 and liberdma, InfiniBand, and adapters without a GUID.
	kernel=6.12
	lab connectx --userland sid test -v -timeout 20m -run AgainstC ./provider/mlx5 || failed="$failed sid"
	build/lab --kernel $kernel --userland sid test -v -timeout 20m -run AgainstC ./provider/erdma || failed="$failed liberdma"
	lab connectx-ib test -v -timeout 20m -run AgainstC ./provider/mlx5 || failed="$failed ib"
	lab connectx-noguid,connectx-noguid test -run TestNoNodeGUID ./cm || failed="$failed noguid"
}

table() {
	name=$1 kernels=$2 limit=20m userlands=- nics="connectx connectx-ib"
	shift 2
	case $name in
	nic)
		userlands="bookworm-security sid" nics="connectx connectx-ib erdma" limit=2h pkgs=./tests/nic ib_pkgs=./tests/nic
		case " $* " in *" -short "*) limit=10m ;; esac
		;;
	*) # on InfiniBand the adapter has no address
		nics="$nics erdma" pkgs="./provider/mlx5 $PKGS"
		ib_pkgs="./cmd/verbs/internal/abicheck ./provider/mlx5 ./uverbs ./cmd/verbs/internal/info ./tests/model ./tests/rdmadev ./tests/scenarios"
		;;
	esac
	rm -rf "build/$name"
	mkdir -p "build/$name"
	for kernel in $kernels; do
		roce=
		case $name-$kernel in nic-7.*) roce=erdma-roce ;; esac # which older drivers lack
		for userland in $userlands; do
			export LAB_USERLAND="${userland#-}"
			for nic in $nics $roce; do
				run=$kernel${LAB_USERLAND:+-$LAB_USERLAND}-$nic p=$pkgs
				case $name-$nic in
				*-connectx-ib) p=$ib_pkgs ;;
				adapter-table-erdma) p="./provider/erdma $PKGS" ;;
				esac
				case $name-$nic in
				adapter-table-erdma) export LABTEST_DEVICE=erdma_0 ;;
				adapter-table-*) export LABTEST_DEVICE=mlx5_0 ;;
				esac
				echo "== $run"
				# shellcheck disable=SC2086 # packages are words
				build/lab --kernel "$kernel" fetch && lab $nic test -json "$@" -timeout $limit $p >"build/$name/$run.json" || failed="$failed $run"
			done
		done
	done
	"${GO:-go}" run ./tests/nic/nicdoc "build/$name"/*.json >"build/$name.md" || failed="$failed table"
	cat "build/$name.md"
}

"$@"
test -z "$failed" || { echo "failed on:$failed"; exit 1; }
