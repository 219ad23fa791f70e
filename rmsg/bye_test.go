package rmsg

import "testing"

// TestBye lets two sides say goodbye in all orders of speaking and hearing. Each time one side ends
// the connection, both have heard the other's bye then, and nothing unexpected arrives.
func TestBye(t *testing.T) {
	type side struct {
		bye    bye
		starts bool   // it disconnects by itself; otherwise when it hears bye
		inbox  []bool // on the way to it: whether it is an answer
	}
	ends := 0
	var walk func(a, b side, path string)
	walk = func(a, b side, path string) {
		moved := false
		for i, s := range []*side{&a, &b} {
			name := string("ab"[i])
			if next := byeSteps[s.bye].say; next != byeNone && (s.starts || s.bye.heard()) {
				x, y := a, b
				me, other := &x, &y
				if i == 1 {
					me, other = &y, &x
				}
				other.inbox = append(other.inbox[:len(other.inbox):len(other.inbox)], me.bye.heard())
				me.bye = next
				moved = true
				walk(x, y, path+" "+name+" says")
			}
			if len(s.inbox) > 0 {
				x, y := a, b
				me := &x
				if i == 1 {
					me = &y
				}
				next := byeSteps[me.bye].hear
				if me.inbox[0] {
					next = byeSteps[me.bye].answer
				}
				if next == byeNone {
					t.Fatalf("%s: %s hears %v in state %d", path, name, me.inbox[0], me.bye)
				}
				me.bye, me.inbox = next, me.inbox[1:]
				moved = true
				walk(x, y, path+" "+name+" hears")
			}
		}
		if moved {
			return
		}
		ends++
		if first, second := a.bye.ends(true), b.bye.ends(false); first == second || !a.bye.heard() || !b.bye.heard() {
			t.Errorf("%s: ends in states %d and %d", path, a.bye, b.bye)
		}
	}
	for _, starts := range [][2]bool{{true, false}, {false, true}, {true, true}} {
		walk(side{starts: starts[0]}, side{starts: starts[1]}, "")
	}
	if ends < 10 {
		t.Errorf("%d ways of saying goodbye", ends)
	}
	for b, next := range byeSteps {
		if bye(b).heard() && next.hear != byeNone {
			t.Errorf("state %d: a second bye is accepted", b)
		}
	}
}
