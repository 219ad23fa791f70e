package main

import (
	"fmt"
	"slices"
	"time"
)

// part is a part of make test-all: calls of make, which run one after the other, whether they fail or not.
type part struct {
	name   string
	covers string
	makes  []string // arguments of make, in words
}

// limit is the longest time of a part. What runs then is killed, and the part has failed.
const limit = 75 * time.Minute

// parts are all parts. TestEveryTarget fails if a target of the Makefile is in none and in no workflow.
var parts = slices.Concat(tests, fuzzing())

// fuzzing returns the parts that run each fuzz test for 10 minutes, nine or ten of them each.
func fuzzing() (list []part) {
	const shares = 7
	for i := range shares {
		share := fmt.Sprintf("%d/%d", i+1, shares)
		list = append(list, part{fmt.Sprintf("fuzz-%d", i+1), share + " of the fuzz tests, for 10 minutes each", []string{"fuzz FUZZTIME=10m SHARE=" + share}})
	}
	return list
}

var tests = []part{
	{"host", "all modules on a device in user space, and boots of the lab", []string{"test-host TEST_ALL=1", "test-race FLAGS="}},
	{"builds", "format, vet, staticcheck, other systems, checks of pointers, 386, coverage", []string{"lint ALL=1", "test-builds FLAGS=", "cover"}},
	{"lab-6.1", "what needs a kernel, on 6.1, long rounds", []string{"test-kernels FLAGS= KERNELS=6.1"}},
	{"lab-6.12", "the same on 6.12", []string{"test-kernels FLAGS= KERNELS=6.12"}},
	{"lab-7.3", "the same on 7.3", []string{"test-kernels FLAGS= KERNELS=7.3"}},
	{"lab-others", "the same, shortened, on Debian 13's 6.12, 6.18 and sid's 7.2", []string{"test-kernels KERNELS=6.12-trixie", "test-kernels KERNELS=6.18", "test-kernels KERNELS=7.2"}},
	{"hosts", "two machines on a wire: kernels 6.1 with 7.3 and 6.12 with 6.1", []string{"hosts"}},
	{"hosts-nic", "two machines with emulated adapters", []string{"test-hosts", "hosts-nic"}},
	{"nic-6.1", "C programs and rdma-core's tests on the emulated adapters, 6.1", []string{"nic KERNELS=6.1"}},
	{"nic-6.12", "the same on 6.12", []string{"test-nic", "nic KERNELS=6.12"}},
	{"nic-7.3", "the same on 7.3", []string{"nic KERNELS=7.3"}},
	{"adapter", "the drivers for the emulated adapters, beside libmlx5 and liberdma, all kernels", []string{"adapter"}},
	{"adapter-6.1", "all packages on the emulated ConnectX, RoCE and InfiniBand, and on the emulated erdma, 6.1", []string{"adapter-table KERNELS=6.1"}},
	{"adapter-6.12", "the same on 6.12", []string{"adapter-table KERNELS=6.12"}},
	{"adapter-7.3", "the same on 7.3", []string{"adapter-table KERNELS=7.3"}},
	{"faults", "faults of devices, links and peers under load", []string{"faults"}},
	{"race", "the race detector, in the lab and on the host", []string{"race"}},
	{"arm64", "an emulated arm64 machine, pages of 4 and 16 KiB", []string{"test-arm64"}},
	{"peers", "C programs of the newest rdma-core", []string{"test-peers"}},
	{"upstream", "the defects of docs/upstream, on the kernels that have them", []string{"upstream"}},
	{"suites", "the tests of net/http, crypto/tls and others over package rsock", []string{"suites"}},
	{"objects", "S3 by RDMA and valkey, with programs of others", []string{"s3 FLAGS=", "valkey"}},
	{"soak", "all layers for 20 minutes on each device", []string{"soak DURATION=20m"}},
	{"soak-nic", "the same on the emulated adapters", []string{"soak DEVICE=mlx5_0 DURATION=20m", "soak DEVICE=erdma_0 DURATION=20m"}},
	{"mutants", "60 small changes of the code, of which tests notice 9 in 10", []string{"mutants LEAST=90"}},
	{"bench", "instructions of posting and polling", []string{"bench-quick"}},
	{"release", "what a release contains, built twice", []string{"release-check"}},
}
