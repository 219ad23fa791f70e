package rmsg

import (
	"math/bits"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// arena is a socket's memory, in a PD of its own: its peer reaches no other
// socket's, whatever keys it guesses.
//
//	receives  one region of Credits+spare slots of Eager bytes, all posted
//	small     regions of slots of both sides' Eager bytes, made as they are needed
//	large     a region each, for a power of two, kept for reuse up to Window bytes
//
// It lives until the socket has gone and all its buffers have been freed.
type arena struct {
	s   *Socket
	dev *device
	pd  *uverbs.PD

	mu    sync.Mutex
	refs  int // the socket, and the buffers in the program's hands
	mrs   []*uverbs.MR
	small []*Buffer
	large [bits.UintSize][]*Buffer
	kept  int // bytes in large
}

// slabSlots is how many small buffers are made at once.
const slabSlots = 16

func newArena(s *Socket, dev *device) (*arena, error) {
	pd, err := dev.ctx.AllocPD()
	if err != nil {
		return nil, err
	}
	return &arena{s: s, dev: dev, pd: pd, refs: 1}, nil
}

// slab makes a region of n slots for messages of up to eager bytes.
func (a *arena) slab(n, eager int) ([]*Buffer, error) {
	slot := (headerSize + eager + 7) &^ 7
	mr, err := a.pd.AllocMR(n*slot, verbs.AccessLocalWrite, uverbs.MROptions{})
	if err != nil {
		return nil, err
	}
	a.mrs = append(a.mrs, mr)
	bufs := make([]*Buffer, n)
	for i := range bufs {
		at := i * slot
		end := at + headerSize + eager
		bufs[i] = &Buffer{s: a.s, mr: mr, mem: mr.Bytes()[at:end:end], at: at, slot: -1, class: -1}
		bufs[i].set(Released)
	}
	return bufs, nil
}

// receives makes the slots of the socket's receives.
func (a *arena) receives(n int) ([]*Buffer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	bufs, err := a.slab(n, a.s.l.opt.Eager)
	for i, b := range bufs {
		b.slot = i
	}
	return bufs, err
}

// get returns a buffer for n bytes, whose status is Free.
func (a *arena) get(n int) (*Buffer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refs == 0 {
		return nil, verbs.ErrClosed
	}
	var b *Buffer
	if n <= a.s.eager {
		if len(a.small) == 0 {
			bufs, err := a.slab(slabSlots, a.s.eager)
			if err != nil {
				return nil, err
			}
			a.small = append(a.small, bufs...)
		}
		b, a.small = a.small[len(a.small)-1], a.small[:len(a.small)-1]
	} else {
		class := bits.Len(uint(n - 1))
		if kept := a.large[class]; len(kept) > 0 {
			b, a.large[class] = kept[len(kept)-1], kept[:len(kept)-1]
			a.kept -= len(b.mem)
		} else {
			mr, err := a.pd.AllocMR(headerSize+(1<<class), verbs.AccessLocalWrite|verbs.AccessRemoteRead, uverbs.MROptions{})
			if err != nil {
				return nil, err
			}
			b = &Buffer{s: a.s, mr: mr, mem: mr.Bytes(), slot: -1, class: class}
		}
	}
	a.refs++
	b.n, b.err, b.auto = n, nil, false
	b.set(Free)
	return b, nil
}

// put takes a buffer from the program.
func (a *arena) put(b *Buffer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case b.slot >= 0: // the socket has posted it again, or has gone
	case b.class < 0:
		a.small = append(a.small, b)
	case a.kept+len(b.mem) > a.s.l.opt.Window || a.refs == 1:
		b.mr.Close()
	default:
		a.large[b.class] = append(a.large[b.class], b)
		a.kept += len(b.mem)
	}
	a.unref()
}

// hold is for a buffer that goes to the program without get.
func (a *arena) hold() {
	a.mu.Lock()
	a.refs++
	a.mu.Unlock()
}

// release is the socket's.
func (a *arena) release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unref()
}

func (a *arena) unref() {
	if a.refs--; a.refs > 0 {
		return
	}
	for _, mr := range a.mrs {
		mr.Close()
	}
	for _, kept := range a.large {
		for _, b := range kept {
			b.mr.Close()
		}
	}
	a.mrs, a.small, a.large = nil, nil, [bits.UintSize][]*Buffer{}
	a.pd.Close()
	a.dev.unref()
}
