package s3test

import (
	"strconv"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/s3rdma"
)

// DC lets versitygw's clients put, get and compare objects of a server, by DC. run runs a program with
// its arguments. The table has the device's name.
func DC(t *testing.T, device string, server *s3rdma.Server, url string, sizes []int, run func(t *testing.T, command ...string)) {
	check := func(t *testing.T, puts, gets uint64, program string, args ...string) {
		t.Helper()
		before := server.Stats()
		run(t, append([]string{"env", "VGWRDMA_RDMA_DEV=" + labtest.MLX5, "AWS_SECRET_ACCESS_KEY=secret", labtest.Built(t, "judges/"+program)}, args...)...)
		if now := server.Stats(); now.Puts-before.Puts != puts || now.Gets-before.Gets != gets {
			t.Errorf("the server has moved objects of %d PUTs and %d GETs, want %d and %d", now.Puts-before.Puts, now.Gets-before.Gets, puts, gets)
		}
	}
	const way = "puts and gets at `s3rdma.Server`, by DC"
	Row(t, "cuobjtest of versitygw 1.8.0, with libmlx5", way, device, func(t *testing.T) {
		for _, n := range sizes {
			Case(t, Size(n), func(t *testing.T) {
				check(t, 2, 2, "cuobjtest", "-endpoint", url, "-size", strconv.Itoa(n), "-n", "2")
			})
		}
	})
	Row(t, "versitygw 1.8.0's C++ host client, with libmlx5", way, device, func(t *testing.T) {
		for _, c := range []struct {
			name string
			n    uint64
		}{{"300 KiB with ranges and a missing key", 1}, {"64 of these at once", 64}} {
			Case(t, c.name, func(t *testing.T) {
				check(t, c.n, 4*c.n, "hostclient", url+"/bucket/many", labtest.MLX5, strconv.Itoa(300<<10), strconv.FormatUint(c.n, 10))
			})
		}
	})
}
