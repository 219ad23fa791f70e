//go:build linux && !nordma

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
	"github.com/goverbs/verbs/internal/host"
)

// demux is a source: each byte of its file is an event for the condition of that number.
type demux struct {
	host.EventFile
	group Group

	mu     sync.Mutex
	counts [4]int
	conds  [4]Cond
}

func newDemux(t *testing.T) (*demux, int) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	f, err := host.NewEventFile(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.Close()
		unix.Close(fds[1])
	})
	m := &demux{EventFile: f}
	m.group.Init(source{m})
	for i := range m.conds {
		m.conds[i].Init(&m.group)
	}
	return m, fds[1]
}

type source struct{ m *demux }

func (s source) Arm() error { return nil }
func (s source) Wake()      { s.m.Wake() }
func (s source) Sleep(ctx context.Context, until time.Time) error {
	return s.m.Sleep(ctx, until, s.m.read)
}

func (m *demux) read(fd int) error {
	var b [1]byte
	if _, err := unix.Read(fd, b[:]); err != nil {
		return err
	}
	m.post(int(b[0]))
	return nil
}

func (m *demux) post(id int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[id]++
	m.conds[id].Signal()
}

func (m *demux) wait(ctx context.Context, id int, until *time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.conds[id].Wait(ctx, &m.mu, until, func() bool {
		if m.counts[id] == 0 {
			return false
		}
		m.counts[id]--
		return true
	})
}

// TestGroup waits in several goroutines for each of several conditions, in some of them only
// for a moment, while events come from the file and from a goroutine: one goroutine that
// waits for an event gets it.
func TestGroup(t *testing.T) {
	const events, each = 4000, 3
	m, w := newDemux(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var left, takers sync.WaitGroup
	left.Add(events)
	for id := range m.counts {
		for range each {
			takers.Go(func() {
				for {
					short, end := context.WithCancel(ctx)
					var until *time.Time
					switch rand.IntN(4) {
					case 0:
						time.AfterFunc(time.Duration(rand.IntN(100))*time.Microsecond, end)
					case 1:
						soon := time.Now().Add(time.Duration(rand.IntN(100)) * time.Microsecond)
						until = &soon
					}
					err := m.wait(short, id, until)
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
		if id := rand.IntN(len(m.counts)); i%3 == 0 {
			m.post(id)
		} else {
			unix.Write(w, []byte{byte(id)})
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
		t.Errorf("events are left, or were lost: %v", m.counts)
	}
	cancel()
	takers.Wait()
}

// TestHandOver ends the wait of the leader while another goroutine waits, which must lead then.
func TestHandOver(t *testing.T) {
	for _, cancelled := range []bool{false, true} {
		m, w := newDemux(t)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := m.wait(ctx, 0, nil); (err != nil) != cancelled {
				t.Error(err)
			}
		})
		waitFor(t, &m.group, func() bool { return m.group.sleeping })
		wg.Go(func() {
			if err := m.wait(t.Context(), 1, nil); err != nil {
				t.Error(err)
			}
		})
		waitFor(t, &m.group, func() bool { return m.group.last != m.group.leader })
		if cancelled {
			cancel()
		} else {
			unix.Write(w, []byte{0})
		}
		waitFor(t, &m.group, func() bool { return m.group.first == m.group.last && m.group.sleeping })
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
	for deadline := time.Now().Add(time.Minute); !met(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not come")
		}
	}
}

// TestGroupEnds checks that all waits fail when the file is closed, and at their time, which
// is set while they wait.
func TestGroupEnds(t *testing.T) {
	m, _ := newDemux(t)
	var until time.Time
	errs := make(chan error)
	begin := func() {
		for i := range 2 * len(m.counts) {
			go func() { errs <- m.wait(t.Context(), i/2, &until) }()
		}
		waitFor(t, &m.group, func() bool {
			n := 0
			for w := m.group.first; w != nil; w = w.next {
				n++
			}
			return n == 2*len(m.counts) && m.group.sleeping
		})
	}
	end := func(want error) {
		for range 2 * len(m.counts) {
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
