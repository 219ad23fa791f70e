package conns_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"regexp"
	"slices"
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

// tried are the waits that waits has seen.
var tried []string

// waits waits until a connection of a source waits for something.
func waits(t *testing.T, layer, what string, s conns.Source) {
	t.Helper()
	var text string
	for ctx := labtest.Within(t, 20*time.Second); ctx.Err() == nil; time.Sleep(time.Millisecond) {
		var list []cm.ConnInfo
		text = get(t, "?format=json", s)
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for _, i := range list {
			for _, w := range i.Waits {
				if !strings.HasPrefix(w.For, what) {
					continue
				}
				if i.Layer != layer || i.Device == "" || i.QPNum == 0 || i.Since.IsZero() != (i.State == "connecting") || !strings.HasPrefix(i.Remote, "10.0.0.") || w.Since.After(time.Now()) {
					t.Errorf("%+v", i)
				}
				if table := get(t, "", s); !strings.Contains(table, what) {
					t.Errorf("%q is not in the table:\n%s", what, table)
				}
				tried = append(tried, w.For)
				return
			}
		}
	}
	t.Fatalf("nothing waits for %q: %s", what, text)
}

// runbook returns the waits that the page about programs that hang explains.
func runbook(t *testing.T) (texts []string) {
	page := string(labtest.Must(os.ReadFile("../../docs/troubleshooting.md"))(t))
	_, table, _ := strings.Cut(page, "| waits for | cause |")
	table, _, _ = strings.Cut(table, "\n\n")
	for _, row := range strings.Split(table, "\n")[2:] {
		for i, text := range strings.Split(strings.Split(row, "|")[1], "`") {
			if i%2 == 1 {
				texts = append(texts, text)
			}
		}
	}
	if len(texts) < 10 {
		t.Fatalf("the page explains only %q", texts)
	}
	return texts
}

// TestHangs finds out why programs hang, in each of the ways that the page explains.
func TestHangs(t *testing.T) {
	network := verbstest.NewNetwork(verbstest.Options{})
	client, server := verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	var calls sync.WaitGroup

	t.Run("handshake", func(t *testing.T) {
		l := labtest.Must((&cm.ListenConfig{Transport: server}).Listen(ctx, "10.0.0.2:5"))(t)
		defer l.Close()
		calls.Go(func() {
			if e, err := (&cm.Dialer{Transport: client}).Dial(ctx, "10.0.0.2:5"); err == nil {
				e.Close()
			}
		})
		r := labtest.Must(l.Accept(ctx))(t)
		waits(t, "cm", "the peer's answer", client)
		network.Partition(netip.MustParseAddr("10.0.0.1"))
		calls.Go(func() {
			if e, err := r.Accept(ctx, cm.Options{}); err == nil {
				e.Close()
			}
		})
		waits(t, "cm", "the peer's confirmation", server)
		network.Heal()
		calls.Wait()
	})
	t.Run("rsock", func(t *testing.T) {
		l := labtest.Must((&rsock.ListenConfig{Transport: server}).Listen(ctx, "rdma", "10.0.0.2:1"))(t).(*rsock.Listener)
		defer l.Close()
		d := rsock.Dialer{Transport: client, Options: rsock.Options{Linger: -1}}
		c := labtest.Must(d.DialContext(ctx, "rdma", "10.0.0.2:1"))(t)
		waits(t, "rsock", "Accept", l)
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
		calls.Go(func() { c.Recv(ctx) })
		waits(t, "rmsg", "Recv: messages of the peer, by 1 calls", &d)
		labtest.Check(t, c.Close())
		calls.Wait()
		<-s.Done()
	})
	t.Run("rmsg loops", func(t *testing.T) {
		release := make(chan struct{})
		take := func(_ *rmsg.Conn, b *rmsg.Buffer) {
			<-release
			b.Free()
		}
		l := labtest.Must((&rmsg.ListenConfig{Options: rmsg.Options{Transport: server, Callbacks: rmsg.Callbacks{Message: take}}}).Listen(ctx, "10.0.0.2:6"))(t)
		defer l.Close()
		loop := labtest.Must(rmsg.NewLoop(rmsg.Options{Transport: client}))(t)
		defer loop.Close()
		d := rmsg.Dialer{Loop: loop}
		c := labtest.Must(d.Connect("10.0.0.2:6"))(t)
		var s *rmsg.Conn
		calls.Go(func() { s = labtest.Must(l.Accept(ctx))(t) })
		for c.State() != rmsg.Established {
			labtest.Must(loop.Dispatch(ctx))(t)
		}
		calls.Wait()
		waits(t, "rmsg", "Run or Dispatch of its loop, which is not called", &d)
		calls.Go(func() { loop.Run(ctx) })
		labtest.Check(t, c.Send(ctx, []byte("waits for release")))
		waits(t, "rmsg", "its loop, which is in a callback", l)
		labtest.Check(t, c.Send(ctx, make([]byte, 64<<10)))
		waits(t, "rmsg", "the peer to read 1 announced messages", &d)
		network.Partition(netip.MustParseAddr("10.0.0.2"))
		labtest.Check(t, c.Send(ctx, []byte("lost")))
		waits(t, "rmsg", "completions of 1 messages", &d)
		network.Heal()
		close(release)
		labtest.Check(t, c.Shutdown(ctx))
		<-s.Done()
		labtest.Check(t, loop.Close())
		calls.Wait()
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
		calls.Go(func() { c.Await(ctx, rconn.Sends, make([]verbs.WC, 1)) })
		waits(t, "rconn", "completions of requests, by 1 calls", &d)
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
	for _, text := range runbook(t) {
		like := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(text), " N ", ` [0-9]+ `) + "(,|$)")
		if !slices.ContainsFunc(tried, like.MatchString) {
			t.Errorf("%q was not tried, but %q", text, tried)
		}
	}
}

// TestLook looks at a server that does not read: its peer, which has used up its credits, gets none by that.
func TestLook(t *testing.T) {
	network := verbstest.NewNetwork(verbstest.Options{})
	client, server := verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
	l := labtest.Must((&rsock.ListenConfig{Transport: server, Options: rsock.Options{RecvQueue: 32}}).Listen(t.Context(), "rdma", "10.0.0.2:1"))(t)
	defer l.Close()
	d := rsock.Dialer{Transport: client, Options: rsock.Options{Linger: -1}}
	c := labtest.Must(d.DialContext(t.Context(), "rdma", "10.0.0.2:1"))(t)
	s := labtest.Must(l.Accept())(t)
	defer s.Close()
	var writes sync.WaitGroup
	writes.Go(func() {
		for {
			if _, err := c.Write([]byte("nobody reads it")); err != nil {
				return
			}
		}
	})
	waits(t, "rsock", "Write: credits of the peer", &d)
	sent := c.(*rsock.Conn).Stats().MessagesSent
	for range 5 {
		if list := conns.List(server); len(list) != 1 || list[0].Stats.(rsock.ConnStats).Unread != 0 {
			t.Errorf("%+v", list)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if now := c.(*rsock.Conn).Stats().MessagesSent; now != sent {
		t.Errorf("%d messages were sent, and %d after looking", sent, now)
	}
	c.Close()
	writes.Wait()
}

// TestOrder lists what waits for the longest time first, and last what only waits for the peer's program.
func TestOrder(t *testing.T) {
	now := time.Now()
	wait := func(qp uint32, since time.Duration, idle bool) cm.ConnInfo {
		return cm.ConnInfo{QPNum: qp, Waits: []cm.Wait{{Since: now.Add(-since), Idle: idle}}}
	}
	var order []uint32
	for _, i := range conns.List(some{{QPNum: 5}, wait(3, time.Hour, true), wait(2, time.Second, false), wait(4, time.Minute, true), wait(1, time.Minute, false)}) {
		order = append(order, i.QPNum)
	}
	if !slices.IsSorted(order) || len(order) != 5 {
		t.Error(order)
	}
}

type some []cm.ConnInfo

func (s some) Conns() []cm.ConnInfo { return s }

func ExampleHandler() {
	debug := http.NewServeMux() // not the one of the program's users
	debug.Handle("/debug/rdma", conns.Handler())
	go http.ListenAndServe("127.0.0.1:6060", debug)
}
