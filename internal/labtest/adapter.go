//go:build linux

package labtest

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// Adapters returns the adapters that the lab emulates, as its --nic names them: "connectx-ib" is
// InfiniBand, others are RoCE. The first is mlx5_0.
func Adapters() []string {
	return strings.FieldsFunc(os.Getenv("VERBS_NIC"), func(r rune) bool { return r == ',' })
}

func adapterName(i int) string { return fmt.Sprintf("mlx5_%d", i) }

// EachAdapter runs a test on each adapter that the lab emulates, whether or not there is a provider
// that can open it. Without one it skips the test.
func EachAdapter(t *testing.T, test func(t *testing.T, device string, infiniBand bool)) {
	t.Helper()
	RequireKernel(t)
	adapters := Adapters()
	if len(adapters) == 0 {
		t.Skip(`needs an emulated adapter: run by make test-nic, or with go test -exec "build/lab --nic connectx"`)
	}
	for i, kind := range adapters {
		t.Run(adapterName(i), func(t *testing.T) { test(t, adapterName(i), kind == "connectx-ib") })
	}
}
