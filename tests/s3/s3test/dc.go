package s3test

import (
	"strconv"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/s3rdma"
)

// Target is a server that moves objects by DC.
type Target struct {
	Name, Device string // in the table
	URL          string
	Unsigned     string // URL of a bucket, for requests without a signature
	Access       string
	Secret       string
	Stats        func() s3rdma.Stats // nil if the server is of others
}

// DC lets versitygw's clients put, get and compare objects of a server. They clear their memory between.
// run runs a program with its arguments.
func DC(t *testing.T, server Target, sizes []int, run func(t *testing.T, command ...string)) {
	check := func(t *testing.T, puts, gets uint64, program string, args ...string) {
		t.Helper()
		stats := server.Stats
		if stats == nil {
			stats = func() s3rdma.Stats { return s3rdma.Stats{} }
			puts, gets = 0, 0
		}
		before := stats()
		run(t, append([]string{"env", "VGWRDMA_RDMA_DEV=" + labtest.MLX5, "AWS_SECRET_ACCESS_KEY=" + server.Secret, labtest.Built(t, "judges/"+program)}, args...)...)
		if now := stats(); now.Puts-before.Puts != puts || now.Gets-before.Gets != gets {
			t.Errorf("the server has moved objects of %d PUTs and %d GETs, want %d and %d", now.Puts-before.Puts, now.Gets-before.Gets, puts, gets)
		}
	}
	way := "puts and gets at " + server.Name + ", by DC"
	Row(t, "cuobjtest of versitygw 1.8.0, with libmlx5", way, server.Device, func(t *testing.T) {
		for _, n := range sizes {
			Case(t, Size(n), func(t *testing.T) {
				check(t, 2, 2, "cuobjtest", "-endpoint", server.URL, "-access", server.Access, "-size", strconv.Itoa(n), "-n", "2")
			})
		}
	})
	Row(t, "versitygw 1.8.0's C++ host client, with libmlx5", way, server.Device, func(t *testing.T) {
		for _, c := range []struct {
			name string
			n    uint64
		}{{"300 KiB with ranges and a missing key", 1}, {"64 of these at once", 64}} {
			Case(t, c.name, func(t *testing.T) {
				check(t, c.n, 4*c.n, "hostclient", server.Unsigned+"/many", labtest.MLX5, strconv.Itoa(300<<10), strconv.FormatUint(c.n, 10))
			})
		}
	})
}
