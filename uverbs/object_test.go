package uverbs

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs/provider"
)

// region is a region that the kernel destroys only when no window is bound to it.
type region struct {
	bound    atomic.Bool
	released atomic.Bool
	addr     uint64 // 0 until it has pinned memory
}

func (r *region) object(pd *object) *object {
	addr, unpin := pin(make([]byte, 64))
	r.addr = addr
	o := newObject("dev0", objectName{format: "MR"}, func() error {
		if r.bound.Load() {
			return syscall.EINVAL
		}
		r.released.Store(true)
		return unpin()
	}, pd)
	o.pinned = true
	return o
}

func newTree() (ctx, pd *object) {
	ctx = newObject("dev0", objectName{format: "context"}, func() error { return nil })
	return ctx, newObject("dev0", objectName{format: "PD"}, func() error { return nil }, ctx)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long for %s", what)
		}
	}
}

// TestUnreachableOrder makes a PD unreachable with its region and a window that is bound to the
// region, made in either order: all are closed, the window before the region.
func TestUnreachableOrder(t *testing.T) {
	for _, windowFirst := range []bool{false, true} {
		r := new(region)
		r.bound.Store(true)
		ctx, pd := newTree()
		window := func() *object {
			mw := newObject("dev0", objectName{format: "MW"}, func() error { r.bound.Store(false); return nil }, pd)
			mw.pinned = true
			return mw
		}
		var all []*object
		if windowFirst {
			all = []*object{window(), r.object(pd)}
		} else {
			all = []*object{r.object(pd), window()}
		}
		if err := all[0].close(); windowFirst != (err == nil) {
			t.Fatalf("closing what was made first: %v", err)
		}
		all = append(all, ctx, pd)
		pd.markUnreachable()
		ctx.markUnreachable()
		eventually(t, "all to be closed", func() bool {
			runtime.GC()
			return !slices.ContainsFunc(all, func(o *object) bool { return !o.isClosed() })
		})
	}
}

// TestUnreachableAlreadyClosed makes closed objects unreachable: no goroutine is started
// for them.
func TestUnreachableAlreadyClosed(t *testing.T) {
	ctx, pd := newTree()
	for _, o := range []*object{pd, ctx} {
		if err := o.close(); err != nil {
			t.Fatal(err)
		}
		o.markUnreachable()
	}
	ctx.tree.mu.Lock()
	defer ctx.tree.mu.Unlock()
	if ctx.tree.closing || len(ctx.tree.pending) > 0 {
		t.Error("a goroutine closes what has been closed")
	}
}

// TestDestroyRetried makes a region unreachable that the kernel refuses to destroy at
// first. It stays open, with its memory, and is closed after a later collection.
func TestDestroyRetried(t *testing.T) {
	r := new(region)
	r.bound.Store(true)
	attempts := new(atomic.Int32)
	func() {
		ctx, pd := newTree()
		mr := r.object(pd)
		destroy := mr.destroy
		mr.destroy = func() error { attempts.Add(1); return destroy() }
		ctx.markUnreachable()
		pd.markUnreachable()
	}()
	collect := func() bool { runtime.GC(); return attempts.Load() >= 3 }
	eventually(t, "more tries", collect) // the runtime panics if it finds a Pinner that is unreachable
	if r.released.Load() {
		t.Error("the region was released")
	}
	r.bound.Store(false)
	eventually(t, "its release", func() bool { runtime.GC(); return r.released.Load() })
}

// TestEnterOrder checks that objects are entered in the order of their creation: a call
// that waits for the newer one holds the older one.
func TestEnterOrder(t *testing.T) {
	ctx, _ := newTree()
	older := newObject("dev0", objectName{format: "CQ 1"}, nil, ctx)
	newer := newObject("dev0", objectName{format: "CQ 2"}, nil, ctx)
	for _, objects := range [][]*object{{older, newer}, {newer, older}} {
		newer.mu.Lock()
		done := make(chan error)
		go func() { done <- enterAll("test", objects) }()
		eventually(t, "the older to be entered", func() bool {
			free := older.mu.TryLock()
			if free {
				older.mu.Unlock()
			}
			return !free
		})
		newer.mu.Unlock()
		if err := <-done; err != nil {
			t.Error(err)
		}
		exitAll(objects)
	}
}

// lockCheckQueue is an SRQ's queue that checks that Close cannot run during its methods.
type lockCheckQueue struct {
	provider.RecvQueue
	t   *testing.T
	srq *object
}

func (q lockCheckQueue) check() error {
	if q.srq.mu.TryLock() {
		q.srq.mu.Unlock()
		q.t.Error("the SRQ has not been entered")
	}
	return nil
}

func (q lockCheckQueue) Resize(int, func(int, provider.UHW) error) error { return q.check() }
func (q lockCheckQueue) SetLimit(int, func(provider.UHW) error) error    { return q.check() }

// TestSRQOrder checks that an SRQ is entered before its queue is locked, as in Close.
func TestSRQOrder(t *testing.T) {
	ctx, _ := newTree()
	s := &SRQ{obj: newObject("dev0", objectName{format: "SRQ 0"}, nil, ctx)}
	s.queue = lockCheckQueue{t: t, srq: s.obj}
	if err := errors.Join(s.Resize(8), s.SetLimit(1)); err != nil {
		t.Error(err)
	}
}

// TestChildren makes objects that are in use by others, closes those in many orders, and moves one
// to another parent.
func TestChildren(t *testing.T) {
	nothing := func() error { return nil }
	ctx, a := newTree()
	b := newObject("dev0", objectName{format: "other PD"}, nothing, ctx)
	users := func(o *object) string {
		if err := o.checkUnused("close"); err != nil {
			_, names, _ := strings.Cut(err.Error(), "in use by ")
			return names
		}
		return ""
	}
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {2, 0, 3, 1}} {
		var children []*object
		for i, parents := range [][]*object{{a}, {a}, {a, b}, {a}} {
			children = append(children, newObject("dev0", objectName{"MR %d", uint32(i)}, nothing, parents...))
		}
		children[3].reparent(a, b)
		inA, inB := []string{"MR 0", "MR 1", "MR 2"}, []string{"MR 2", "MR 3"}
		for _, i := range order {
			if got, want := users(a), strings.Join(inA, ", "); got != want {
				t.Fatalf("order %d: in use by %q, want %q", order, got, want)
			}
			if got, want := users(b), strings.Join(inB, ", "); got != want {
				t.Fatalf("order %d: the other in use by %q, want %q", order, got, want)
			}
			if err := children[i].close(); err != nil {
				t.Fatal(err)
			}
			closed := func(name string) bool { return name == children[i].name.String() }
			inA, inB = slices.DeleteFunc(inA, closed), slices.DeleteFunc(inB, closed)
		}
	}
	for _, o := range []*object{a, b, ctx} {
		if err := o.close(); err != nil {
			t.Error(err)
		}
	}
}

// TestManyChildren closes what very many use: the error names some of them.
func TestManyChildren(t *testing.T) {
	_, pd := newTree()
	for i := range 1000 {
		newObject("dev0", objectName{"MR %d", uint32(i)}, func() error { return nil }, pd)
	}
	if err := pd.close(); err == nil || strings.Count(err.Error(), "MR ") != 16 || !strings.HasSuffix(err.Error(), ", 984 more") {
		t.Error(err)
	}
}
