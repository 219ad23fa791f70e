package hosts

import (
	"fmt"
	"net"
	"net/http"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/s3rdma"
	"github.com/goverbs/verbs/tests/s3/s3test"
	"github.com/goverbs/verbs/uverbs"
)

// TestObjects lets versitygw's clients with libmlx5, on the second machine, put, get and compare objects
// of a server here. make s3 runs it, with memory for a gigabyte four times.
func TestObjects(t *testing.T) {
	p := dialTwin(t)
	server := labtest.Made(s3rdma.NewServer(s3rdma.ServerOptions{Device: labtest.Made(uverbs.Open(adapter))(t)}))(t)
	// The clients take the GID of the IPv6 address, and the server refuses one that requests do not come from.
	l := labtest.Must(net.Listen("tcp", net.JoinHostPort(fmt.Sprintf(adapterAddr6, 1), "0")))(t)
	web := &http.Server{Handler: s3test.CuObjTest(server.Handler(&s3test.Store{}))}
	go web.Serve(l)
	defer web.Close()
	sizes := labtest.Few(4, []int{1, 4097, 1 << 20, 20 << 20, 256 << 20, 1 << 30})
	url := "http://" + l.Addr().String()
	target := s3test.Target{Name: "`s3rdma.Server`", Device: adapter + " of two machines", URL: url, Unsigned: url + "/bucket", Access: "admin", Secret: "secret", Stats: server.Stats}
	s3test.DC(t, target, sizes, func(t *testing.T, command ...string) {
		t.Helper()
		t.Log(p.run(t, 2, command...))
	})
}
