//go:build linux

package labtest

import (
	"flag"
	"os"
	"path"
	"sync"
	"testing"

	"github.com/goverbs/verbs/internal/sys"
)

// Lab reports whether tests run in the lab, on a kernel with RDMA.
var Lab = os.Getenv("VERBS_LAB") != ""

// onHost reports whether the lab's machine is the user's own, by rdmalab --host.
var onHost = os.Getenv("VERBS_ON_HOST") != ""

// Soft reports whether tests run on a device in user space, as they do outside of the lab. A
// program that has one by VERBS_SOFT has no other, and runs no test that requires one here.
var Soft = !Lab && os.Getenv("VERBS_SOFT") == ""

// Allocates reports whether the device may allocate for each packet: one in user space takes its
// buffers from a sync.Pool, which under the race detector drops some of them at random.
var Allocates = Race && !Lab

// Main runs the tests of a package whose examples need a device of the lab. With VERBS_SOFT it skips the
// examples, as Require skips tests.
func Main(m *testing.M) {
	flag.Parse()
	if !Lab && !Soft {
		flag.Set("test.skip", "^Example")
	}
	os.Exit(m.Run())
}

// A test's first call decides where it runs. [Each], [Open] and similar functions call Require:
//
//	                 go test   lab -short   lab
//	Require          soft      -            kernel
//	RequireBoth      soft      kernel       kernel
//	RequireKernel    -         kernel       kernel
//	RequireGuest     -         kernel       kernel, but not with --host
//	RequireLong      -         -            kernel
//
// RequireAll skips what make test-all alone runs.

// Require lets a test run on any device. With -short it skips the test in the lab, unless
// LABTEST_DEVICE names a device: go test has run it on the device in user space.
func Require(t testing.TB) {
	t.Helper()
	if !Lab && !Soft {
		t.Skip("VERBS_SOFT is set")
	}
	if Lab && testing.Short() && only == "" && !isMarked(t.Name()) {
		t.Skip("has run on the device in user space: with -short the lab runs what needs a kernel")
	}
}

// RequireBoth lets a test, and its subtests, run on the device in user space and always on the kernel's
// devices. It is for one test of each layer, and for tests of drivers.
func RequireBoth(t testing.TB) {
	t.Helper()
	marked.Store(t.Name(), true)
	Require(t)
}

// RequireKernel lets a test, and its subtests, run on devices of the kernel only, and skips it
// outside of the lab.
func RequireKernel(t testing.TB) {
	t.Helper()
	if !Lab {
		t.Skip("needs RDMA in the kernel: run by make test, or with go test -exec build/lab")
	}
	marked.Store(t.Name(), true)
}

// RequireGuest is like RequireKernel for a test that changes the machine, and skips it with rdmalab --host.
func RequireGuest(t testing.TB, changes string) {
	t.Helper()
	RequireKernel(t)
	if onHost {
		t.Skip("is not for --host, as it " + changes)
	}
}

// Older reports whether the kernel is older than major.minor.
func Older(major, minor int) bool { return sys.Before(sys.KernelRelease(), major, minor) }

// RequireAdapter is like RequireKernel for a test of [MLX5], which only a lab with an adapter has.
func RequireAdapter(t testing.TB) {
	t.Helper()
	RequireKernel(t)
	if !HasAdapter() {
		t.Skip("needs an adapter: run by make test-nic, or with rdmalab --nic connectx test")
	}
}

// HasAdapter reports whether there is [MLX5].
func HasAdapter() bool {
	_, err := os.Stat("/sys/class/infiniband/" + MLX5)
	return Lab && err == nil
}

// RequireLong is like RequireKernel, and skips the test with -short: for most changes, tests with fewer
// rounds or peers suffice.
func RequireLong(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes long: run by make test-all, or without -short")
	}
	RequireKernel(t)
}

// All reports whether tests that take minutes run: without -short, in make test-all or with TEST_ALL=1.
func All() bool { return os.Getenv("TEST_ALL") != "" && !testing.Short() }

// RequireAll skips a test unless [All] holds, and says what it does for so long.
func RequireAll(t testing.TB, does string) {
	t.Helper()
	if !All() {
		t.Skip(does + ": run by make test-all, or with TEST_ALL=1")
	}
}

// marked has the names of tests that run with -short in the lab as well.
var marked sync.Map

func isMarked(test string) bool {
	for ; test != "."; test = path.Dir(test) {
		if _, ok := marked.Load(test); ok {
			return true
		}
	}
	return false
}

// Rounds returns n, or with -short few.
func Rounds(n, few int) int {
	if testing.Short() {
		return few
	}
	return n
}

// Few returns all cases, or with -short the first n.
func Few[T any](n int, all []T) []T { return all[:Rounds(len(all), min(n, len(all)))] }
