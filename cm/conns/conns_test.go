package conns_test

import (
	"context"
	"encoding/json"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/cm/conns"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rconn"
	"github.com/goverbs/verbs/rmsg"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/verbstest"
)

// get returns what a handler answers.
func get(t *testing.T, query string, sources ...conns.Source) string {
	w := httptest.NewRecorder()
	conns.Handler(sources...).ServeHTTP(w, httptest.NewRequest("GET", "/debug/rdma"+query, nil))
	if w.Code != 200 {
		t.Fatalf("%s: %d", query, w.Code)
	}
	return w.Body.String()
}

// waits waits until the only connection of a source waits for something.
func waits(t *testing.T, layer, what string, s conns.Source) {
	t.Helper()
	var text string
	for t.Context().Err() == nil {
		var list []cm.ConnInfo
		text = get(t, "?format=json", s)
		if err := json.Unmarshal([]byte(text), &list); err != nil || len(list) != 1 {
			t.Fatalf("%s: %v", text, err)
		}
		i := list[0]
		for _, w := range i.Waits {
			if strings.Contains(w.For, what) {
				if i.Layer != layer || i.Device == "" || i.QPNum == 0 || i.Since.IsZero() || !strings.HasPrefix(i.Remote, "10.0.0.") || w.Since.After(time.Now()) {
					t.Errorf("%+v", i)
				}
				if table := get(t, "", s); !strings.Contains(table, what) {
					t.Errorf("%q is not in the table:\n%s", what, table)
				}
				return
			}
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("nothing waits for %q: %s", what, text)
}

// TestHangs finds out why programs hang, in each of five ways.
func TestHangs(t *testing.T) {
	network := verbstest.NewNetwork(verbstest.Options{})
	client, server := verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	var calls sync.WaitGroup

	t.Run("rsock", func(t *testing.T) {
		l := labtest.Must((&rsock.ListenConfig{Transport: server}).Listen(ctx, "rdma", "10.0.0.2:1"))(t).(*rsock.Listener)
		defer l.Close()
		d := rsock.Dialer{Transport: client, Options: rsock.Options{Linger: -1}}
		c := labtest.Must(d.DialContext(ctx, "rdma", "10.0.0.2:1"))(t)
		s := labtest.Must(l.Accept())(t)
		calls.Go(func() { s.Read(make([]byte, 1)) })
		waits(t, "rsock", "Read: data of the peer", l)
		calls.Go(func() { s.Write(make([]byte, 1<<20)) })
		waits(t, "rsock", "Write: the peer to read, as its ring is full", l)
		c.Close()
		calls.Wait()
		s.Close()
	})
	t.Run("rmsg", func(t *testing.T) {
		l := labtest.Must((&rmsg.ListenConfig{Options: rmsg.Options{Transport: server, Credits: 4}}).Listen(ctx, "10.0.0.2:2"))(t)
		defer l.Close()
		d := rmsg.Dialer{Options: rmsg.Options{Transport: client}}
		var s *rmsg.Conn
		calls.Go(func() { s = labtest.Must(l.Accept(ctx))(t) })
		c := labtest.Must(d.Dial(ctx, "10.0.0.2:2"))(t)
		calls.Wait()
		for range 10 {
			labtest.Check(t, c.Send(ctx, []byte("nobody takes it")))
		}
		waits(t, "rmsg", "credits of the peer, for 6 messages", &d)
		labtest.Check(t, c.Close())
		<-s.Done()
	})
	t.Run("rconn", func(t *testing.T) {
		l := labtest.Must((&rconn.ListenConfig{Transport: server}).Listen(ctx, "10.0.0.2:3"))(t)
		defer l.Close()
		var s *rconn.Conn
		calls.Go(func() {
			s = labtest.Must(labtest.Must(l.Accept(ctx))(t).Accept(ctx, rconn.Options{}))(t)
		})
		d := rconn.Dialer{Transport: client}
		c := labtest.Must(d.Dial(ctx, "10.0.0.2:3"))(t)
		calls.Wait()
		calls.Go(func() { c.Await(ctx, rconn.Recvs, make([]verbs.WC, 1)) })
		waits(t, "rconn", "messages of the peer, by 1 calls", &d)
		labtest.Check(t, c.Close())
		calls.Wait()
		labtest.Check(t, s.Close())
	})
	t.Run("no network", func(t *testing.T) {
		l := labtest.Must((&rsock.ListenConfig{Transport: server}).Listen(ctx, "rdma", "10.0.0.2:4"))(t)
		defer l.Close()
		d := rsock.Dialer{Transport: client, Options: rsock.Options{SendQueue: 16}}
		c := labtest.Must(d.DialContext(ctx, "rdma", "10.0.0.2:4"))(t)
		s := labtest.Must(l.Accept())(t)
		network.Partition(netip.MustParseAddr("10.0.0.2"))
		calls.Go(func() {
			for range 100 {
				if _, err := c.Write([]byte("lost")); err != nil {
					return
				}
			}
		})
		waits(t, "rsock", "Write: completions of the device", &d)
		calls.Go(func() { c.Close() })
		waits(t, "rsock", "Close: the peer's acknowledgement", &d)
		network.Heal()
		calls.Wait()
		s.Close()
	})
}

func ExampleHandler() {
	l, err := rsock.Listen("rdma", ":7471")
	if err != nil {
		log.Fatal(err)
	}
	debug := http.NewServeMux() // not the one of the program's users
	debug.Handle("/debug/rdma", conns.Handler(l.(*rsock.Listener)))
	go http.ListenAndServe("127.0.0.1:6060", debug)
}
