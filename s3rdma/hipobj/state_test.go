//go:build linux

package hipobj

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestTransitions walks the table in all orders of events: memory that the program has is freed by
// it alone, a closed session stays closed, and every session can be closed.
func TestTransitions(t *testing.T) {
	programs := map[state]bool{staging: true, moved: true, committed: true, ended: true}
	seen := map[state]bool{}
	var walk func(s state, depth int, path string)
	walk = func(s state, depth int, path string) {
		seen[s] = true
		for e := range numEvents {
			next, err := s.after(e)
			if (err != nil) != errors.Is(err, ErrState) || err != nil && next != s {
				t.Errorf("%s%v: %v, %v", path, e, next, err)
			}
			if next == closed && programs[s] && e != finish {
				t.Errorf("%s%v: frees memory that the program has", path, e)
			}
			if s == closed && next != closed {
				t.Errorf("%s%v: a closed session is %v", path, e, next)
			}
			if programs[next] && !programs[s] && e != done {
				t.Errorf("%s%v: the program gets the session without asking for it", path, e)
			}
			if depth > 0 {
				walk(next, depth-1, fmt.Sprintf("%s%v, ", path, e))
			}
		}
		if next, err := s.after(finish); err != nil || next != closed && next != stopping {
			t.Errorf("%sclose: %v, %v", path, next, err)
		}
	}
	walk(staging, 4, "")
	if len(seen) != int(numStates) {
		t.Errorf("%d of %d states are reached", len(seen), numStates)
	}
	for e := range numEvents {
		if e != finish && e != cancel {
			if _, err := closed.after(e); err == nil {
				t.Errorf("%v on a closed session succeeds", e)
			}
		}
	}
}

// TestSessionCalls makes the calls of a session in all orders. What they return, and when its
// memory is free, is as the table says.
func TestSessionCalls(t *testing.T) {
	each(t, func(t *testing.T, dev *uverbs.Context) {
		s := newSite(t, dev, Options{})
		c := s.newClient(t, dev, "u")
		m := c.memory(t, []byte("the bytes of an object"))
		calls := []event{publish, move, commit, cancel, finish}
		depth := 4
		if !labtest.Soft {
			depth = 3 // each order takes 0.1 s in the lab
		}
		var walk func(op Op, orders []event)
		walk = func(op Op, order []event) {
			if len(order) == depth {
				runOrder(t, s, c, m, op, order)
				return
			}
			for _, e := range calls {
				walk(op, append(order[:len(order):len(order)], e))
			}
		}
		walk(Get, nil)
		walk(Put, nil)
	})
}

func runOrder(t *testing.T, s *site, c *Client, m Memory, op Op, order []event) {
	t.Helper()
	x := labtest.Must(c.begin(Request{Op: op, Target: "/b/k", Account: "u"}, m))(t)
	defer x.qp.Close()
	p := labtest.Must(s.Prepare(x.Request))(t)
	defer p.Close()
	x.session = p.ID()
	h := map[string][]string{}
	token := p.Token()
	set(h, "reply", okReply+token.String())
	set(h, "psn", fmt.Sprintf("%x", p.PSN()))
	set(h, "mr-addr", fmt.Sprintf("%x", token.Addr))
	set(h, "mr-rkey", fmt.Sprintf("%x", token.RKey))
	labtest.Check(t, x.connect(h))
	copy(m.MR.Bytes(), "the bytes of an object")
	want := staging
	for i, e := range order {
		next, wantErr := want.after(e)
		if e == move && wantErr == nil {
			next = moved
			if op == Put {
				_, err := x.qp.PostSend(verbs.SendWR{Opcode: verbs.OpRDMAWriteImm, Imm: x.Cookie, RemoteAddr: x.addr, RKey: x.rkey, SGL: []verbs.SGE{m.MR.SGE(0, m.MR.Len())}})
				labtest.Check(t, err)
			}
		}
		err := map[event]func() error{
			publish: p.Publish, commit: p.Commit, cancel: p.Cancel, finish: p.Close,
			move: func() error {
				return p.Move(labtest.Within(t, waitTime), Ready{QPNum: x.Peer.QPNum, Addr: m.MR.Addr(), RKey: m.MR.RKey()})
			},
		}[e]()
		want = next
		if p.current() != want || (err == nil) != (wantErr == nil) || wantErr != nil && !errors.Is(err, ErrState) {
			t.Fatalf("%s: %v: state %q, error %v; want %q, %v", op, order[:i+1], p.current(), err, want, wantErr)
		}
		b := p.Bytes()
		if has := op == Get && want == staging || op == Put && (want == moved || want == committed); (b != nil) != has {
			t.Errorf("%s: %v: bytes %q", op, order[:i+1], b)
		} else if op == Put && has && !bytes.Equal(b, m.MR.Bytes()) {
			t.Errorf("%s: %v: other bytes %q", op, order[:i+1], b)
		}
		if n := s.Stats().Sessions; (n == 0) != (want == closed) {
			t.Errorf("%s: %v: %d sessions", op, order[:i+1], n)
		}
		if _, err := s.Session("u", p.ID()); (err == nil) != (want != closed) {
			t.Errorf("%s: %v: looking it up: %v", op, order[:i+1], err)
		}
	}
}
