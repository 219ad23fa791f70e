//go:build linux

package hipobj

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestMemoryOfOthers has a client that knows addresses and keys of other sessions' memory, and
// accesses it by a queue pair of its own session. The victims' transfers are not disturbed.
func TestMemoryOfOthers(t *testing.T) {
	labtest.RequireBoth(t)
	each(t, func(t *testing.T, dev *uverbs.Context) {
		s := newSite(t, dev, Options{Connect: fast})
		victim, attacker := s.newClient(t, dev, "victim"), s.newClient(t, dev, "attacker")
		want := labtest.RandomBytes(1, 4096)
		s.store.objects.Store("/b/get", want)
		for _, op := range []Op{Get, Put} {
			for _, wr := range []verbs.SendWR{{Opcode: verbs.OpRDMAWrite}, {Opcode: verbs.OpRDMAWriteImm, Imm: 1}, {Opcode: verbs.OpRDMARead}} {
				m := victim.memory(t, want)
				if op == Get {
					clear(m.MR.Bytes())
				}
				x, session := s.prepared(t, victim, op, "/b/"+strings.ToLower(string(op)), m)
				evil, own := s.prepared(t, attacker, Put, "/b/evil", attacker.memory(t, bytes.Repeat([]byte{'X'}, 4096)))
				wr.RemoteAddr, wr.RKey = session.mr.Addr(), session.mr.RKey()
				if err := evil.post(t, wr); !errors.Is(err, verbs.WCRemAccessErr) && !errors.Is(err, verbs.WCRemInvReqErr) {
					t.Errorf("%v to the memory of another's %s: %v", wr.Opcode, op, err)
				}
				if _, err := evil.send(t.Context(), "ready"); err == nil {
					t.Error("the attacker's transfer succeeds")
				}
				own.Close() // unless its queue pair has failed
				if op == Put {
					_, err := x.qp.PostSend(verbs.SendWR{Opcode: verbs.OpRDMAWriteImm, Flags: verbs.SendSignaled, Imm: x.Cookie, RemoteAddr: x.addr, RKey: x.rkey, SGL: []verbs.SGE{m.MR.SGE(0, m.MR.Len())}})
					labtest.Check(t, err)
				}
				labtest.Must(x.send(t.Context(), "ready"))(t)
				labtest.Check(t, x.complete(labtest.Within(t, waitTime)))
				if !bytes.Equal(m.MR.Bytes(), want) || op == Put && !bytes.Equal(s.store.get("/b/put"), want) {
					t.Errorf("%v has changed another's %s", wr.Opcode, op)
				}
			}
		}
		if s.store.get("/b/evil") != nil {
			t.Error("the attacker's object is stored")
		}
	})
}

// TestMemoryOfGet accesses the staging memory of a GET by the queue pair of its own session.
func TestMemoryOfGet(t *testing.T) {
	each(t, func(t *testing.T, dev *uverbs.Context) {
		s := newSite(t, dev, Options{})
		c := s.newClient(t, dev, "u")
		want := labtest.RandomBytes(1, 4096)
		s.store.objects.Store("/b/k", want)
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
			x, session := s.prepared(t, c, Get, "/b/k", c.memory(t, make([]byte, 4096)))
			if x.addr != 0 || session.Token().RKey != 0 {
				t.Error("a GET names the server's memory")
			}
			if err := x.post(t, verbs.SendWR{Opcode: op, RemoteAddr: session.mr.Addr(), RKey: session.mr.RKey()}); err == nil {
				t.Errorf("%v succeeds", op)
			}
			if got := session.mr.Bytes(); !bytes.Equal(got, want) {
				t.Errorf("%v has changed the bytes", op)
			}
			labtest.Check(t, session.Cancel())
		}
	})
}

// TestWriteAfterReady writes again while the server stores the bytes of a PUT.
func TestWriteAfterReady(t *testing.T) {
	labtest.RequireBoth(t)
	each(t, func(t *testing.T, dev *uverbs.Context) {
		s := newSite(t, dev, Options{})
		c := s.newClient(t, dev, "u")
		c.Connect = fast
		m := c.memory(t, []byte("first bytes"))
		x, _ := s.prepared(t, c, Put, "/b/k", m)
		var late error
		s.store.onPut = func(context.Context, []byte) error {
			copy(m.MR.Bytes(), "other bytes")
			late = x.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: x.addr, RKey: x.rkey})
			return nil
		}
		labtest.Check(t, x.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWriteImm, Imm: x.Cookie, RemoteAddr: x.addr, RKey: x.rkey}))
		h := labtest.Must(x.send(t.Context(), "ready"))(t)
		if !errors.Is(late, verbs.WCRetryExcErr) {
			t.Errorf("the WRITE after READY: %v", late)
		}
		if got := s.store.get("/b/k"); string(got) != "first bytes" || get(h, "checksum") != checksum(got) {
			t.Errorf("stored %q with %s", got, get(h, "checksum"))
		}
	})
}

// TestClientLies sends other bytes than PREPARE has announced: nothing is stored, and the session
// is gone.
func TestClientLies(t *testing.T) {
	each(t, func(t *testing.T, dev *uverbs.Context) {
		s := newSite(t, dev, Options{})
		c := s.newClient(t, dev, "u")
		for name, wr := range map[string]verbs.SendWR{
			"short":           {Opcode: verbs.OpRDMAWriteImm, SGL: []verbs.SGE{}},
			"shorter":         {Opcode: verbs.OpRDMAWriteImm},
			"other immediate": {Opcode: verbs.OpRDMAWriteImm, Imm: 1},
			"SEND":            {Opcode: verbs.OpSendImm, SGL: []verbs.SGE{}},
			"beyond":          {Opcode: verbs.OpRDMAWriteImm, RemoteAddr: 1},
		} {
			m := c.memory(t, make([]byte, 100))
			x, _ := s.prepared(t, c, Put, "/b/k", m)
			if name == "shorter" {
				wr.SGL = []verbs.SGE{m.MR.SGE(0, 99)}
			}
			if wr.Imm == 0 {
				wr.Imm = x.Cookie
			}
			wr.RemoteAddr, wr.RKey = wr.RemoteAddr+x.addr, x.rkey
			x.post(t, wr)
			if _, err := x.send(t.Context(), "ready"); statusOfAnswer(err) != http.StatusBadRequest && statusOfAnswer(err) != http.StatusBadGateway {
				t.Errorf("%s: READY: %v", name, err)
			}
			if n := s.Stats().Sessions; n != 0 || s.store.get("/b/k") != nil {
				t.Errorf("%s: %d sessions, stored %q", name, n, s.store.get("/b/k"))
			}
		}
	})
}

// TestOtherAccounts sends READY and CANCEL of sessions that are another's, or none.
func TestOtherAccounts(t *testing.T) {
	each(t, func(t *testing.T, dev *uverbs.Context) {
		s := newSite(t, dev, Options{})
		c, eve := s.newClient(t, dev, "u"), s.newClient(t, dev, "eve")
		x, session := s.prepared(t, c, Put, "/b/k", c.memory(t, make([]byte, 10)))
		for name, change := range map[string]func(*exchange){
			"another account": func(x *exchange) { x.client = eve },
			"no session":      func(x *exchange) { x.session = newID() },
			"empty":           func(x *exchange) { x.session = "" },
		} {
			other := *x
			change(&other)
			for _, step := range []string{"ready", "cancel"} {
				_, err := other.send(t.Context(), step)
				if e, ok := errors.AsType[*Error](err); !ok || e.Status != http.StatusNotFound || !strings.Contains(e.Text, ErrNoSession.Error()) {
					t.Errorf("%s: %s: %v", name, step, err)
				}
			}
		}
		other := *x
		other.Cookie++
		if _, err := other.send(t.Context(), "ready"); statusOfAnswer(err) != http.StatusNotFound {
			t.Errorf("another cookie: %v", err)
		}
		nobody := s.newClient(t, dev, "")
		other = *x
		other.client = nobody
		for _, step := range []string{"prepare", "ready", "cancel"} {
			if _, err := other.send(t.Context(), step); statusOfAnswer(err) != http.StatusForbidden {
				t.Errorf("without an account: %s: %v", step, err)
			}
		}
		if s := session.current(); s != prepared {
			t.Errorf("the session is %v", s)
		}
		labtest.Must(x.send(t.Context(), "cancel"))(t)
	})
}

// TestPeerOfAnotherMachine names a GID that the HTTP request does not come from.
func TestPeerOfAnotherMachine(t *testing.T) {
	each(t, func(t *testing.T, dev *uverbs.Context) {
		s := newSite(t, dev, Options{})
		s.handler.AllowPeer = nil
		c := s.newClient(t, dev, "u")
		_, err := c.Put(t.Context(), "/b/k", c.memory(t, make([]byte, 10)))
		if e, ok := errors.AsType[*Error](err); !ok || e.Status != http.StatusForbidden || !strings.Contains(e.Text, "127.0.0.1") {
			t.Error(err)
		}
		if s.store.get("/b/k") != nil {
			t.Error("it is stored")
		}
	})
	n, s, c := newHosts(t, Options{})
	s.handler.AllowPeer = nil
	if _, err := c.Put(t.Context(), "/b/k", c.memory(t, make([]byte, 10))); statusOfAnswer(err) != http.StatusForbidden || n.Stats().Sent != 0 {
		t.Errorf("%v, %d packets", err, n.Stats().Sent)
	}
}

// TestPSNs compares the PSNs, IDs and queue pairs of sessions.
func TestPSNs(t *testing.T) {
	each(t, func(t *testing.T, dev *uverbs.Context) {
		s := newSite(t, dev, Options{})
		seen := map[uint32]bool{}
		var ids [][]byte
		const n = 40
		for range n {
			x := labtest.Must(s.Prepare(Request{Op: Put, Target: "/b/k", Size: 1, Cookie: 1, Peer: verbs.QPAddr{PSN: 1}}))(t)
			defer x.Close()
			if x.PSN() == 0 || x.PSN() > maxPSN || x.PSN() == x.Token().QPNum || len(x.ID()) != 32 {
				t.Errorf("PSN %#x of QP %#x, session %s", x.PSN(), x.Token().QPNum, x.ID())
			}
			seen[x.PSN()] = true
			ids = append(ids, labtest.Must(hex.DecodeString(x.ID()))(t))
		}
		if len(seen) < n-1 { // two alike are one in 20,000, and two such pairs one in a billion
			t.Errorf("%d PSNs of %d sessions", len(seen), n)
		}
		labtest.BitsDiffer(t, ids)
	})
}

// TestLimits exceeds each limit: the answer names it, and 413 or 503 say whether waiting helps.
func TestLimits(t *testing.T) {
	each(t, func(t *testing.T, dev *uverbs.Context) {
		s := newSite(t, dev, Options{Limits: Limits{Sessions: 3, Bytes: 1000, AccountSessions: 2, AccountBytes: 600}})
		a, b, c := s.newClient(t, dev, "a"), s.newClient(t, dev, "b"), s.newClient(t, dev, "c")
		refused := func(c *Client, size, status int, limit string) {
			t.Helper()
			_, err := c.Put(t.Context(), "/b/k", c.memory(t, make([]byte, size)))
			if statusOfAnswer(err) != status || !strings.Contains(err.Error(), limit) || errors.Is(err, errors.ErrUnsupported) != (status == http.StatusRequestEntityTooLarge) {
				t.Errorf("%d bytes: %v, want %d with %s", size, err, status, limit)
			}
		}
		refused(a, 601, http.StatusRequestEntityTooLarge, "AccountBytes")
		x1, _ := s.prepared(t, a, Put, "/b/k", a.memory(t, make([]byte, 300)))
		refused(a, 301, http.StatusServiceUnavailable, "AccountBytes")
		x2, _ := s.prepared(t, a, Put, "/b/k", a.memory(t, make([]byte, 200)))
		refused(a, 1, http.StatusServiceUnavailable, "AccountSessions")
		refused(b, 501, http.StatusServiceUnavailable, "limit Bytes")
		x3, _ := s.prepared(t, b, Put, "/b/k", b.memory(t, make([]byte, 500)))
		refused(c, 1, http.StatusServiceUnavailable, "limit Sessions")
		for _, x := range []*exchange{x1, x2, x3} {
			labtest.Must(x.send(t.Context(), "cancel"))(t)
		}
		if st := s.Stats(); st.Sessions != 0 || st.Memory != 0 {
			t.Errorf("after CANCEL there are %d sessions with %d bytes", st.Sessions, st.Memory)
		}
	})
}

// readyAndWait sends READY of a PUT without a WRITE, waits until it runs, and returns its answer.
func (x *exchange) readyAndWait(t *testing.T, ctx context.Context, s *Session) <-chan error {
	t.Helper()
	answer := make(chan error, 1)
	go func() {
		_, err := x.send(ctx, "ready")
		answer <- err
	}()
	labtest.Until(t, "READY runs", func() bool { return s.current() == moving })
	return answer
}

// TestReadyEnds ends a READY that waits for a WRITE, in each way. The session is gone when it is
// answered.
func TestReadyEnds(t *testing.T) {
	each(t, func(t *testing.T, dev *uverbs.Context) {
		s := newSite(t, dev, Options{})
		c := s.newClient(t, dev, "u")
		c.Connect = fast
		for name, test := range map[string]struct {
			status int
			end    func(x *exchange, gone context.CancelFunc)
		}{
			"CANCEL": {http.StatusConflict, func(x *exchange, _ context.CancelFunc) {
				labtest.Must(x.send(t.Context(), "cancel"))(t)
			}},
			"the client dies": {0, func(_ *exchange, gone context.CancelFunc) { gone() }},
			"access error": {http.StatusBadGateway, func(x *exchange, _ context.CancelFunc) {
				x.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: x.addr + 1, RKey: x.rkey})
			}},
		} {
			x, session := s.prepared(t, c, Put, "/b/k", c.memory(t, make([]byte, 100)))
			ctx, gone := context.WithCancel(t.Context())
			answer := x.readyAndWait(t, ctx, session)
			if _, err := x.send(t.Context(), "ready"); statusOfAnswer(err) != http.StatusConflict {
				t.Errorf("%s: a second READY: %v", name, err)
			}
			test.end(x, gone)
			err := <-answer
			if err == nil || statusOfAnswer(err) != test.status {
				t.Errorf("%s: %v, want %d", name, err, test.status)
			}
			if test.status == 0 { // nobody waits for the answer
				<-session.life.Done()
				labtest.Until(t, name, func() bool { n := s.Stats().Sessions; return n == 0 })
			}
			if n := s.Stats().Sessions; n != 0 || s.store.get("/b/k") != nil {
				t.Errorf("%s: %d sessions, stored %q", name, n, s.store.get("/b/k"))
			}
			// The memory may be another session's by now.
			wr := verbs.SendWR{Opcode: verbs.OpRDMAWriteImm, Imm: x.Cookie, RemoteAddr: x.addr, RKey: x.rkey}
			if err := x.post(t, wr); err == nil {
				t.Errorf("%s: the client's WRITE after the session's end succeeds", name)
			}
			gone()
		}
	})
}

// TestDeadlines has clients that stop after PREPARE, and after READY.
func TestDeadlines(t *testing.T) {
	each(t, func(t *testing.T, dev *uverbs.Context) {
		s := newSite(t, dev, Options{PrepareTime: 50 * time.Millisecond, MoveTime: 50 * time.Millisecond})
		c := s.newClient(t, dev, "u")
		x, session := s.prepared(t, c, Put, "/b/k", c.memory(t, make([]byte, 100)))
		if session != nil { // else it is over already
			ctx, stop := session.Context(t.Context())
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, context.DeadlineExceeded) || !strings.Contains(cause.Error(), "50ms") {
				t.Errorf("the session has ended by %v", cause)
			}
			stop()
		}
		s.open.Wait()
		if _, err := x.send(t.Context(), "ready"); statusOfAnswer(err) != http.StatusNotFound {
			t.Errorf("READY after the deadline: %v", err)
		}

		s = newSite(t, dev, Options{MoveTime: 50 * time.Millisecond})
		c = s.newClient(t, dev, "u")
		x, _ = s.prepared(t, c, Put, "/b/k", c.memory(t, make([]byte, 100)))
		if _, err := x.send(t.Context(), "ready"); statusOfAnswer(err) != http.StatusGatewayTimeout || !strings.Contains(err.Error(), "50ms") {
			t.Errorf("READY without a WRITE: %v", err)
		}
		if n := s.Stats().Sessions; n != 0 {
			t.Errorf("%d sessions", n)
		}

		// A store that takes longer.
		x, _ = s.prepared(t, c, Put, "/b/k", c.memory(t, make([]byte, 100)))
		s.store.onPut = func(ctx context.Context, _ []byte) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		labtest.Check(t, x.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWriteImm, Imm: x.Cookie, RemoteAddr: x.addr, RKey: x.rkey}))
		if _, err := x.send(t.Context(), "ready"); statusOfAnswer(err) != http.StatusGatewayTimeout {
			t.Errorf("READY with a slow store: %v", err)
		}
	})
}

// TestCancelAndCommit cancels a PUT while it is stored, which is too late, and a GET while it is
// staged.
func TestCancelAndCommit(t *testing.T) {
	each(t, func(t *testing.T, dev *uverbs.Context) {
		s := newSite(t, dev, Options{})
		c := s.newClient(t, dev, "u")
		x, _ := s.prepared(t, c, Put, "/b/k", c.memory(t, []byte("bytes")))
		s.store.onPut = func(context.Context, []byte) error {
			if _, err := x.send(t.Context(), "cancel"); statusOfAnswer(err) != http.StatusConflict {
				t.Errorf("CANCEL while the object is stored: %v", err)
			}
			return nil
		}
		labtest.Check(t, x.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWriteImm, Imm: x.Cookie, RemoteAddr: x.addr, RKey: x.rkey}))
		labtest.Must(x.send(t.Context(), "ready"))(t)
		if string(s.store.get("/b/k")) != "bytes" {
			t.Errorf("stored %q", s.store.get("/b/k"))
		}
		for _, step := range []string{"ready", "cancel"} {
			if _, err := x.send(t.Context(), step); statusOfAnswer(err) != http.StatusNotFound {
				t.Errorf("%s after the end: %v", step, err)
			}
		}
	})
}

// TestServerCloses closes a server while sessions wait in each state.
func TestServerCloses(t *testing.T) {
	each(t, func(t *testing.T, dev *uverbs.Context) {
		s := newSite(t, dev, Options{})
		c := s.newClient(t, dev, "u")
		x, session := s.prepared(t, c, Put, "/b/k", c.memory(t, make([]byte, 100)))
		s.prepared(t, c, Put, "/b/k", c.memory(t, make([]byte, 100)))
		answer := x.readyAndWait(t, t.Context(), session)
		labtest.Check(t, s.Server.Close())
		if err := <-answer; statusOfAnswer(err) != http.StatusServiceUnavailable {
			t.Errorf("READY: %v", err)
		}
		if _, err := c.Put(t.Context(), "/b/k", x.mem); statusOfAnswer(err) != http.StatusServiceUnavailable {
			t.Errorf("PREPARE: %v", err)
		}
	})
}

// TestCloseFails: a session whose objects cannot be destroyed, as something uses them, says so, and
// its account has as much less.
func TestCloseFails(t *testing.T) {
	each(t, func(t *testing.T, dev *uverbs.Context) {
		s := labtest.Must(NewServer(dev, Options{}))(t)
		x := labtest.Must(s.Prepare(Request{Account: "u", Op: Put, Target: "/b/k", Size: 100, Cookie: 1, Peer: verbs.QPAddr{PSN: 1}}))(t)
		user := labtest.Must(x.pd.AllocMR(1, verbs.AccessLocalWrite, uverbs.MROptions{}))(t)
		if err := x.Close(); !errors.Is(err, verbs.ErrInUse) {
			t.Errorf("Close: %v", err)
		}
		if st := s.Stats(); st.Sessions != 1 || st.Memory != 100 {
			t.Errorf("memory that is not free is given to others: %+v", st)
		}
		labtest.Check(t, user.Close(), x.pd.Close(), s.Close())
	})
}

// TestStats has a transfer of each kind and end.
func TestStats(t *testing.T) {
	each(t, func(t *testing.T, dev *uverbs.Context) {
		s := newSite(t, dev, Options{MoveTime: 50 * time.Millisecond, Limits: Limits{AccountBytes: 1000}})
		c := s.newClient(t, dev, "u")
		m := c.memory(t, make([]byte, 100))
		labtest.Must(c.Put(t.Context(), "/b/k", m))(t)
		for range 2 {
			labtest.Must(c.Get(t.Context(), "/b/k", 0, Memory{MR: m.MR, Size: 10}))(t)
		}
		if _, err := c.Put(t.Context(), "/b/k", c.memory(t, make([]byte, 1001))); err == nil {
			t.Error("PUT beyond the limit succeeds")
		}
		x, session := s.prepared(t, c, Put, "/b/k", m)
		if st := s.Stats(); st.Sessions != 1 || st.Memory != 100 {
			t.Errorf("with a session: %+v", st)
		}
		if _, err := x.send(t.Context(), "ready"); err == nil { // without a WRITE
			t.Error("READY succeeds")
		}
		<-session.life.Done()
		s.handler.AllowPeer = nil
		if _, err := c.Put(t.Context(), "/b/k", m); err == nil {
			t.Error("PUT of another machine succeeds")
		}
		if st, want := s.Stats(), (Stats{Puts: 1, Gets: 2, PutBytes: 100, GetBytes: 20, Failed: 1, Refused: 2, Expired: 1}); st != want {
			t.Errorf("%+v, want %+v", st, want)
		}
	})
}

func TestCloseNil(t *testing.T) {
	for _, err := range []error{(*Server)(nil).Close(), (*Session)(nil).Close()} {
		if !errors.Is(err, verbs.ErrClosed) {
			t.Error(err)
		}
	}
}
