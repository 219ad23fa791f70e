//go:build linux

package s3rdma

import (
	"bytes"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestConns finds out why an object does not move, in each of the ways that docs/s3.md explains.
func TestConns(t *testing.T) {
	labtest.RequireBoth(t)
	page := string(labtest.Must(os.ReadFile("../docs/s3.md"))(t))
	object := labtest.RandomBytes(1, 100_000)
	entered, goOn := make(chan bool), make(chan bool, 1)
	half := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Write(object[:len(object)/2])
		entered <- true
		<-goOn
		w.Write(object[len(object)/2:])
	})
	// A lost packet is sent again after a second, and for some seconds.
	eachRig(t, ServerOptions{Fabric: Fabric{Timeout: 18, RetryCount: 6}}, half, func(t *testing.T, r *rig) {
		c := labtest.Must(NewClient(ClientOptions{Device: r.devices[1].Device().Name, RC: !r.dc}))(t)
		defer c.Close()
		answered := make(chan bool)
		defer func() { <-answered }()
		rest := sync.OnceFunc(func() { goOn <- true })
		defer rest()
		type source interface{ Conns() []cm.ConnInfo }
		waits := func(s source, state, what string) (i cm.ConnInfo) {
			t.Helper()
			kind, _, _ := strings.Cut(what, " GET ")
			if !strings.Contains(page, "`"+kind) {
				t.Errorf("docs/s3.md does not explain %q", what)
			}
			labtest.Until(t, fmt.Sprintf("%T to wait for %q", s, what), func() bool {
				for _, i = range s.Conns() {
					if len(i.Waits) == 1 && i.Waits[0].For == what && !i.Waits[0].Since.Before(i.Since) {
						return true
					}
				}
				return false
			})
			if i.Layer != "s3rdma" || i.Device == "" || i.QPNum == 0 || !strings.HasPrefix(i.State, state) {
				t.Errorf("%+v, want state %q", i, state)
			}
			return i
		}
		url := r.http.URL + "/bucket/key"
		go func() {
			defer close(answered)
			if status, got, err := request(t, &Transport{Client: c}, "GET", url+"?versionId=1", nil); status != 200 || err != nil || !bytes.Equal(got, object) {
				t.Errorf("%d, %d bytes, %v", status, len(got), err)
			}
		}()
		<-entered
		near := waits(c, "in use", "the answer to GET "+url)
		far := waits(r.srv, "RDMA_WRITE of ", "the server's program, which has the transfer")
		if near.Remote != r.http.URL && !r.dc || far.Remote != near.Local {
			t.Errorf("the client has %+v, the server %+v", near, far)
		}
		if r.network != nil {
			r.network.Partition(netip.MustParseAddr(clientAddr))
			rest()
			waits(r.srv, "RDMA_WRITE of ", "completions of the device")
			r.network.Heal()
		} else {
			rest()
		}
		<-answered
		for _, s := range []source{c, r.srv} {
			for _, i := range s.Conns() {
				if i.State != "idle" || len(i.Waits) != 0 {
					t.Errorf("after the answer: %+v", i)
				}
			}
		}
		if n := len(c.Conns()); n != 1 {
			t.Errorf("the client has %d queue pairs", n)
		}
	})
}
