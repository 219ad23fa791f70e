package verbstest_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/verbstest"
)

// TestHTTP shuts a server of net/http down, whose client has died. Its Close goes on in the background, since
// net/http closes connections while it holds a lock, on which no bubble's clock can advance.
func TestHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := verbstest.NewNetwork(verbstest.Options{Link: verbstest.Link{Delay: 10 * time.Microsecond}})
		behind := func(c net.Conn) net.Conn {
			if err := c.(*rsock.Conn).SetLinger(-1); err != nil {
				t.Error(err)
			}
			return c
		}
		lc := rsock.ListenConfig{Transport: verbstest.NewHost(t, network, "10.0.0.1")}
		l, err := lc.Listen(t.Context(), "rdma", "10.0.0.1:80")
		if err != nil {
			t.Fatal(err)
		}
		server := http.Server{
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello ", r.URL.Path) }),
			ConnContext: func(ctx context.Context, c net.Conn) context.Context {
				behind(c)
				return ctx
			},
		}
		go server.Serve(l)
		var clients []*http.Transport
		for i := range 3 {
			addr := fmt.Sprintf("10.0.1.%d", i)
			d := rsock.Dialer{Transport: verbstest.NewHost(t, network, addr)}
			transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				c, err := d.DialContext(ctx, "rdma", address)
				if err != nil {
					return nil, err
				}
				return behind(c), nil
			}}
			clients = append(clients, transport)
			resp, err := (&http.Client{Transport: transport}).Get("http://10.0.0.1/" + addr)
			if err != nil {
				t.Fatal(err)
			}
			if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "hello /"+addr {
				t.Errorf("%q, %v", body, err)
			}
			resp.Body.Close()
			if i < 2 {
				network.Remove(netip.MustParseAddr(addr))
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		if err := server.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v after %v", err, time.Since(begin))
		}
		for _, c := range clients {
			c.CloseIdleConnections()
		}
	})
}
