package event

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
)

// mail is a source: each byte of its file is a letter for one of its boxes.
type mail struct {
	*File
	group Group

	mu      sync.Mutex
	letters [4]int
	came    [4]Cond
}

func newMail(t *testing.T) (*mail, int) {
	f, w := pipe(t)
	m := &mail{File: f}
	m.group.Init(source{m})
	for i := range m.came {
		m.came[i].Init(&m.group)
	}
	return m, w
}

type source struct{ m *mail }

func (s source) Arm() error { return nil }
func (s source) Wake()      { s.m.Wake() }
func (s source) Sleep(ctx context.Context, until time.Time) error {
	return s.m.Sleep(ctx, until, s.m.take)
}

func (m *mail) take(fd int) error {
	var b [1]byte
	if _, err := unix.Read(fd, b[:]); err != nil {
		return err
	}
	m.put(int(b[0]))
	return nil
}

func (m *mail) put(box int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.letters[box]++
	m.came[box].Signal()
}

func (m *mail) get(ctx context.Context, box int, until *time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.came[box].Wait(ctx, &m.mu, until, func() bool {
		if m.letters[box] == 0 {
			return false
		}
		m.letters[box]--
		return true
	})
}

// TestGroup waits in several goroutines for each of several conditions, in some of them only
// for a moment, while events come from the file and from a goroutine: one goroutine that
// waits for an event gets it.
func TestGroup(t *testing.T) {
	const events, each = 4000, 3
	m, w := newMail(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var left, takers sync.WaitGroup
	left.Add(events)
	for box := range m.letters {
		for range each {
			takers.Go(func() {
				for {
					moment, end := context.WithCancel(ctx)
					var until *time.Time
					switch rand.IntN(4) {
					case 0:
						time.AfterFunc(time.Duration(rand.IntN(100))*time.Microsecond, end)
					case 1:
						soon := time.Now().Add(time.Duration(rand.IntN(100)) * time.Microsecond)
						until = &soon
					}
					err := m.get(moment, box, until)
					end()
					switch {
					case err == nil:
						left.Done()
					case ctx.Err() != nil:
						return
					case err != os.ErrDeadlineExceeded && err != context.Canceled:
						t.Error(err)
						return
					}
				}
			})
		}
	}
	for i := range events {
		if i%11 == 0 {
			time.Sleep(50 * time.Microsecond)
		}
		if box := rand.IntN(len(m.letters)); i%3 == 0 {
			m.put(box)
		} else {
			unix.Write(w, []byte{byte(box)})
		}
	}
	all := make(chan struct{})
	go func() {
		left.Wait()
		close(all)
	}()
	select {
	case <-all:
	case <-ctx.Done():
		t.Errorf("letters are left, or were lost: %v", m.letters)
	}
	cancel()
	takers.Wait()
}

// TestHandOver ends the wait of the leader while another goroutine waits, which must lead then.
func TestHandOver(t *testing.T) {
	for _, cancelled := range []bool{false, true} {
		m, w := newMail(t)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := m.get(ctx, 0, nil); (err != nil) != cancelled {
				t.Error(err)
			}
		})
		waitFor(t, &m.group, func() bool { return m.group.asleep })
		wg.Go(func() {
			if err := m.get(t.Context(), 1, nil); err != nil {
				t.Error(err)
			}
		})
		waitFor(t, &m.group, func() bool { return m.group.last != m.group.leader })
		if cancelled {
			cancel()
		} else {
			unix.Write(w, []byte{0})
		}
		waitFor(t, &m.group, func() bool { return m.group.first == m.group.last && m.group.asleep })
		unix.Write(w, []byte{1})
		wg.Wait()
		cancel()
	}
}

// waitFor waits until cond, which it calls with the group's lock held, returns true.
func waitFor(t *testing.T, g *Group, cond func() bool) {
	t.Helper()
	met := func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return cond()
	}
	for deadline := time.Now().Add(10 * time.Second); !met(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not come")
		}
	}
}

// TestGroupEnds checks that all waits fail when the file is closed, and at their time, which
// is set while they wait.
func TestGroupEnds(t *testing.T) {
	m, _ := newMail(t)
	var until time.Time
	errs := make(chan error)
	begin := func() {
		for i := range 2 * len(m.letters) {
			go func() { errs <- m.get(t.Context(), i/2, &until) }()
		}
		time.Sleep(time.Millisecond)
	}
	end := func(want error) {
		for range 2 * len(m.letters) {
			if err := <-errs; !errors.Is(err, want) {
				t.Errorf("%v, not %v", err, want)
			}
		}
	}
	begin()
	m.mu.Lock()
	until = time.Now().Add(5 * time.Millisecond)
	m.mu.Unlock()
	m.group.SignalAll()
	end(os.ErrDeadlineExceeded)
	m.mu.Lock()
	until = time.Time{}
	m.mu.Unlock()
	begin()
	m.Close()
	end(verbs.ErrClosed)
	if m.group.first != nil || m.group.leader != nil {
		t.Error("goroutines are left in the group")
	}
}
