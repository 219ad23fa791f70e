package faults

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// attack is an attack of a peer on a listener. undo ends the attack.
type attack struct {
	name string
	do   func(t *testing.T, device, addr string) (undo func())
}

// rawIDs returns IDs with a resolved route to addr, and the number of a QP with which the
// caller can connect them.
func rawIDs(t *testing.T, addr string, n int) (ids []*cm.ID, qp uint32, undo func()) {
	t.Helper()
	ch := labtest.Must(cm.DefaultTransport().NewChannel())(t)
	dst := netip.MustParseAddrPort(addr)
	ctx := labtest.OpenDevice(t, deviceOf(addr))
	pd := labtest.Must(ctx.AllocPD())(t)
	cq := labtest.Must(ctx.CreateCQ(uverbs.CQOptions{Depth: 8}))(t)
	q := labtest.Must(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, Cap: small}))(t)
	for range n {
		id := labtest.Must(ch.NewID(0))(t)
		labtest.Check(t, id.ResolveAddr(netip.AddrPort{}, dst, 5*time.Second))
		labtest.Expect(t, id, cm.AddrResolved)
		labtest.Check(t, id.ResolveRoute(5*time.Second))
		labtest.Expect(t, id, cm.RouteResolved)
		ids = append(ids, id)
	}
	return ids, q.Num(), func() {
		for _, id := range ids {
			id.Close()
		}
		ch.Close()
		for _, c := range []interface{ Close() error }{q, cq, pd} {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func deviceOf(addr string) string {
	for _, d := range []string{labtest.SIW, labtest.MLX5} {
		if strings.HasPrefix(addr, labtest.AddrOf(d)) {
			return d
		}
	}
	return labtest.RXE
}

// sendRequests connects raw IDs with private data, and then sends nothing more.
func sendRequests(data []byte, n int) func(t *testing.T, device, addr string) func() {
	return func(t *testing.T, device, addr string) func() {
		ids, qp, undo := rawIDs(t, addr, n)
		for _, id := range ids {
			// On iWARP a QP has one connection; others are refused locally.
			if err := id.Connect(cm.ConnParam{QPNum: qp, PrivateData: data, RetryCount: 7}); err != nil && device != labtest.SIW {
				t.Error(err)
			}
			if device == labtest.SIW {
				break
			}
		}
		return undo
	}
}

func random(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

var attacks = []attack{
	{"asks and falls silent", sendRequests(nil, 1)},
	{"floods with requests", sendRequests(nil, 200)},
	{"sends all the private data it can", sendRequests(random(56), 1)},
	{"speaks TCP and says nothing", tcp(nil, 20)},
	{"speaks TCP and something else", tcp([]byte("GET / HTTP/1.1\r\n\r\n"), 20)},
	{"begins an MPA handshake", tcp([]byte("MPA ID Req Frame"), 20)},
	{"sends an absurd MPA handshake", tcp(append([]byte("MPA ID Req Frame"), random(100)...), 20)},
}

// tcp connects to the port of an iWARP listener.
func tcp(say []byte, n int) func(t *testing.T, device, addr string) func() {
	return func(t *testing.T, device, addr string) func() {
		var conns []net.Conn
		for range n {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				if device == labtest.SIW {
					t.Error(err)
				}
				break // RoCE's ports are not TCP ports
			}
			conns = append(conns, c)
		}
		// siw reads data once if it arrives after siw has accepted, and does not
		// wait for more (tests/hostile.TestHalfHeader).
		time.Sleep(100 * time.Millisecond)
		for _, c := range conns {
			c.Write(say)
		}
		return func() {
			for _, c := range conns {
				c.Close()
			}
		}
	}
}

// TestHostilePeers runs misbehaving peers while others connect: these must not become
// slower, except by the scheduler.
func TestHostilePeers(t *testing.T) {
	labtest.RequireLong(t)
	labtest.Each(t, func(t *testing.T, device string) {
		slowest := func(l *cm.Listener) (most time.Duration, err error) {
			for range 10 {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				start := time.Now()
				e, err := (&cm.Dialer{Options: cm.Options{Cap: small}}).Dial(ctx, l.Addr().String())
				cancel()
				if err != nil {
					return 0, err
				}
				most = max(most, time.Since(start))
				e.Close()
			}
			return most, nil
		}
		for _, h := range attacks {
			t.Run(h.name, func(t *testing.T) {
				l, _, stop := serveDialers(t, device)
				defer stop()
				labtest.Must(slowest(l))(t) // warms up
				usual := labtest.Must(slowest(l))(t)
				undo := sync.OnceFunc(h.do(t, device, l.Addr().String()))
				defer undo()
				now, err := slowest(l)
				if err != nil && labtest.StuckSIW() {
					// siw is stuck until they leave. The connections that it has not
					// handled end at the same time, which may destroy the listener.
					labtest.ExpectWarning(t, "siw_cep_put")
					labtest.ExpectWarning(t, "refcount")
					undo()
					next, _, stop := serveDialers(t, device)
					defer stop()
					now, err = slowest(next)
				}
				if err != nil {
					t.Fatal(err)
				}
				// The 200 handshakes of the flood use the same two
				// processors, but dials must not wait for their timeouts.
				if now > usual+2*time.Second {
					t.Errorf("dialing takes up to %v, usually %v", now, usual)
				}
			})
		}
	})
}

// TestDeadlines checks that every call that waits for a peer returns by its deadline, with
// its documented error.
func TestDeadlines(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		soon := func(t *testing.T) context.Context {
			return labtest.Within(t, 300*time.Millisecond)
		}
		inTime := func(t *testing.T, what string, want error, call func() error) {
			t.Helper()
			start := time.Now()
			if err := call(); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", what, err, want)
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("%s: took %v", what, took)
			}
		}
		// A listener that never accepts.
		l := labtest.Made(cm.Listen(t.Context(), labtest.AddrOf(device)+":0"))(t)
		// A peer that sends a request and leaves before the answer is the dialer, if its time is
		// enough for the request.
		var r *cm.Request
		for wait := 300 * time.Millisecond; r == nil; wait *= 2 {
			inTime(t, "dial one who never accepts", context.DeadlineExceeded, func() error {
				return errOf(cm.Dial(labtest.Within(t, wait), l.Addr().String()))
			})
			var err error
			if r, err = l.Accept(soon(t)); err != nil && wait > 2*time.Second {
				t.Fatal(err)
			}
		}
		inTime(t, "accept one who has gone", nil, func() error {
			e, err := r.Accept(soon(t), cm.Options{})
			if err == nil {
				e.Close()
				return nil // its end had not been noticed yet
			}
			return nil
		})
		inTime(t, "accept without a peer", context.DeadlineExceeded, func() error { return errOf(l.Accept(soon(t))) })
		// A machine that does not exist: the network has no other hosts.
		dead := strings.TrimSuffix(labtest.AddrOf(device), "1") + "77:1"
		inTime(t, "dial a machine that is not there", context.DeadlineExceeded, func() error { return errOf(cm.Dial(soon(t), dead)) })
		inTime(t, "connect timeout", context.DeadlineExceeded, func() error {
			return errOf((&cm.Dialer{ConnectTimeout: 200 * time.Millisecond}).Dial(t.Context(), l.Addr().String()))
		})
	})
}

// TestKilledPeer kills a process with a connection: the other end must notice.
func TestKilledPeer(t *testing.T) {
	labtest.RequireKernel(t)
	if addr := os.Getenv("FAULTS_DIAL"); addr != "" {
		e := labtest.Must(cm.Dial(t.Context(), addr))(t)
		e.ID() // in use until killed
		select {}
	}
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := labtest.Within(t, 30*time.Second)
		l := labtest.Made(cm.Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		child := exec.Command(os.Args[0], "-test.run", "^TestKilledPeer$")
		child.Env = append(os.Environ(), "FAULTS_DIAL="+l.Addr().String())
		labtest.Check(t, child.Start())
		r := labtest.Must(l.Accept(ctx))(t)
		e := labtest.Made(r.Accept(ctx, cm.Options{}))(t)
		if _, err := e.QP.PostRecv(verbs.RecvWR{ID: 9}); err != nil {
			t.Fatal(err)
		}
		labtest.Check(t, child.Process.Signal(unix.SIGKILL))
		child.Wait()
		var wc [1]verbs.WC
		if _, err := e.RecvCQ.PollWait(ctx, wc[:]); err != nil || wc[0].ID != 9 || wc[0].Status != verbs.WCFlushErr {
			t.Errorf("the receive: %+v, %v", wc[0], err)
		}
		select {
		case <-e.Done():
			if !errors.Is(e.Err(), verbs.ErrDisconnected) {
				t.Error(e.Err())
			}
		case <-ctx.Done():
			t.Error("the end of the connection was not noticed")
		}
	})
}

// TestLinkDown sets the link down under a connection.
func TestLinkDown(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		link := labtest.LinkOf(device)
		a, b := labtest.NewPair(t, device, rdmatest.PairOptions{RC: uverbs.ConnectOptions{Timeout: 10, RetryCount: 2}})
		events := make(chan verbs.AsyncEventType, 16)
		ctx := labtest.Within(t, 20*time.Second)
		go func() {
			for e, err := range a.PD.Context().AsyncEvents(ctx) {
				if err != nil {
					return
				}
				events <- e.Type
			}
		}()
		ip := func(state string) {
			if out, err := exec.Command("ip", "link", "set", link, state).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		ip("down")
		defer restore(t, device, ip)
		wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Inline: []byte("x"), RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}
		if _, err := a.QP.PostSend(wr); err != nil {
			t.Fatal(err)
		}
		wc := poll(t, a.SendCQ)
		t.Log("completed with", wc.Status)
		if device == labtest.RXE && wc.Err() == nil {
			t.Error("a write over no network succeeded")
		}
		select {
		case e := <-events:
			if e != verbs.EventPortErr && e != verbs.EventGIDChange && e != verbs.EventQPFatal {
				t.Errorf("event %v", e)
			}
		case <-ctx.Done():
			t.Error("no event")
		}
	})
}

// restore sets the link up, with the addresses that it lost, and waits until the device works
// again.
func restore(t *testing.T, device string, ip func(string)) {
	ip("up")
	exec.Command("ip", "addr", "add", labtest.Addr6Of(device)+"/64", "dev", labtest.LinkOf(device), "nodad").Run()
	ctx := labtest.OpenDevice(t, device)
	labtest.Until(t, "the device", func() bool {
		p, err := ctx.QueryPort(1)
		_, gerr := ctx.FindGID(1, netip.MustParseAddr(labtest.AddrOf(device)))
		return err == nil && p.State == verbs.PortActive && (gerr == nil || labtest.IWARP(t, device))
	})
}
