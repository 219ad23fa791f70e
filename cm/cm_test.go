//go:build linux

package cm_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// pair connects two endpoints and returns them.
func pair(t *testing.T, addr string, dial, accept cm.Options) (client, server *cm.Endpoint) {
	t.Helper()
	labtest.Require(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	client, server = labtest.Connect(ctx, t, addr, dial, accept)
	labtest.Close(t, client)
	labtest.Close(t, server)
	return client, server
}

func TestConnect(t *testing.T) {
	for i, addr := range []string{"10.9.0.1:0", "[fd00:9::1]:0", "10.9.1.1:0", "[fd00:9:1::1]:0"} {
		t.Run(addr, func(t *testing.T) {
			if i > 1 { // of siw
				labtest.RequireKernel(t)
			}
			var buf *uverbs.MR
			client, server := pair(t, addr,
				cm.Options{PrivateData: []byte("from client")},
				cm.Options{PrivateData: []byte("from server"), Setup: func(e *cm.Endpoint) (err error) {
					if buf, err = e.AllocMR(4096, verbs.AccessAll); err == nil {
						_, err = e.QP.PostRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{buf.SGE(0, 4096)}})
					}
					return err
				}})
			if got := string(server.PrivateData); !strings.HasPrefix(got, "from client") {
				t.Errorf("server got private data %q", got)
			}
			if got := string(client.PrivateData); !strings.HasPrefix(got, "from server") {
				t.Errorf("client got private data %q", got)
			}
			if client.RemoteAddr() != server.LocalAddr() || client.LocalAddr() != server.RemoteAddr() {
				t.Errorf("addresses: client %v to %v, server %v to %v", client.LocalAddr(), client.RemoteAddr(), server.LocalAddr(), server.RemoteAddr())
			}
			if n, err := client.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("hello")}); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			var wc [1]verbs.WC
			if _, err := server.RecvCQ.PollWait(t.Context(), wc[:]); err != nil || wc[0].Err() != nil || string(buf.Bytes()[:wc[0].ByteLen]) != "hello" {
				t.Fatal(err, wc[0].Err(), wc[0])
			}
			client.Disconnect()
			select {
			case <-server.Done():
			case <-time.After(10 * time.Second):
				t.Fatal("server did not notice the disconnect")
			}
			if !errors.Is(server.Err(), verbs.ErrDisconnected) || !errors.Is(client.Err(), verbs.ErrClosed) {
				t.Errorf("reasons: server %v, client %v", server.Err(), client.Err())
			}
		})
	}
}

func TestReject(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, reject)
}

func reject(t *testing.T, device string) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	l, err := cm.Listen(ctx, labtest.AddrOf(device)+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if r, err := l.Accept(ctx); err == nil {
			r.Reject([]byte("not you"))
		}
	}()
	_, err = cm.Dial(ctx, l.Addr().String())
	if !labtest.RejectedWith(t, device, err, "not you") {
		t.Fatalf("dial: %v", err)
	}
}
