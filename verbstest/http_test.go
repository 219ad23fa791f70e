package verbstest_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/verbstest"
)

// TestHTTP shuts a server of net/http down, of whose three clients two have died. Connections are
// closed in the background, those of clients by an option: net/http closes them while it holds a
// lock, on which no bubble's clock can advance.
func TestHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := verbstest.NewNetwork(verbstest.Options{Link: verbstest.Link{Delay: 10 * time.Microsecond}})
		lc := rsock.ListenConfig{Transport: verbstest.NewHost(t, network, "10.0.0.1")}
		l, err := lc.Listen(t.Context(), "rdma", "10.0.0.1:80")
		if err != nil {
			t.Fatal(err)
		}
		server := http.Server{
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello ", r.URL.Path) }),
		}
		go server.Serve(l)
		var clients []*http.Transport
		for i := range 3 {
			addr := fmt.Sprintf("10.0.1.%d", i)
			d := rsock.Dialer{Transport: verbstest.NewHost(t, network, addr), Options: rsock.Options{Linger: -1}}
			transport := &http.Transport{DialContext: d.DialContext}
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
		within, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := l.(*rsock.Listener).Shutdown(within); err != nil || time.Since(begin) < time.Second {
			t.Errorf("the listener's shutdown: %v after %v; the device gives up later", err, time.Since(begin))
		}
		for _, c := range clients {
			c.CloseIdleConnections()
		}
	})
}
