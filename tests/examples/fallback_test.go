package examples

import (
	"fmt"
	"testing"
)

// TestFallback runs both sides of http and grpc over RDMA, and over TCP on loopback, which
// needs no device.
func TestFallback(t *testing.T) {
	t.Run("loopback", func(t *testing.T) { fallback(t, "127.0.0.1", "tcp") })
	each(t, func(t *testing.T, _, addr string) { fallback(t, addr, "rdma") })
}

func fallback(t *testing.T, host, by string) {
	for _, p := range []struct{ name, client, arg, prints, serverPrints string }{
		{"http", "get", "http://%s/world", "connected by %s\nhello world\n", "/world by %s"},
		{"grpc", "check", "%s", "SERVING by %s\n", "/grpc.health.v1.Health/Check by %s"},
	} {
		t.Run(p.name, func(t *testing.T) {
			_, lines, addr := startServer(t, p.name, "serve", host+":0")
			out, errs, exit := run(t, p.name, p.client, fmt.Sprintf(p.arg, addr))
			if want := fmt.Sprintf(p.prints, by); out != want || errs != "" || exit != 0 {
				t.Errorf("the client: exit status %d, output\n%s%s", exit, out, errs)
			}
			lines.Scan()
			if want := fmt.Sprintf(p.serverPrints, by); lines.Text() != want {
				t.Errorf("the server prints %q", lines.Text())
			}
		})
	}
}
