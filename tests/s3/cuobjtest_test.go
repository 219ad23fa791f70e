package s3

import (
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/s3rdma"
	"github.com/goverbs/verbs/tests/s3/s3test"
)

// TestCuObjTest lets versitygw's clients with libmlx5 put, get and compare objects.
func TestCuObjTest(t *testing.T) {
	labtest.RequireAdapter(t)
	server := labtest.Made(s3rdma.NewServer(s3rdma.ServerOptions{Device: labtest.OpenDevice(t, labtest.MLX5), Logger: logger(t)}))(t)
	// The clients take the GID of the IPv6 address, and the server refuses one that requests do not come
	// from.
	url := serve(t, labtest.Addr6Of(labtest.MLX5), s3test.CuObjTest(server.Handler(&s3test.Store{})))
	target := s3test.Target{Name: "`s3rdma.Server`", Device: labtest.MLX5, URL: url, Unsigned: url + "/bucket", Access: "admin", Secret: "secret", Stats: server.Stats}
	s3test.DC(t, target, sizes, func(t *testing.T, command ...string) { start(t, command).Wait() })
}
