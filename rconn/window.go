package rconn

import (
	"fmt"
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// Window is a memory window of type 2: a key to a part of a region, without the cost of a
// registration. rxe does not enforce its bounds: a peer with the key reaches the whole region, see
// [uverbs.MW]. siw has no windows.
type Window struct {
	c      *Conn
	mw     *uverbs.MW
	closed atomic.Bool
	bound  RemoteRegion // last; guarded by c.send.mu
}

// AllocWindow allocates an unbound window. [Conn.Close] closes it if it is still open.
func (c *Conn) AllocWindow() (*Window, error) {
	c.windowsMu.Lock()
	defer c.windowsMu.Unlock()
	if c.closed.Load() { // Close has closed all windows already
		return nil, c.fail("allocate window of", verbs.ErrClosed)
	}
	mw, err := c.ep.PD.AllocMW(verbs.MWType2)
	if err != nil {
		return nil, err
	}
	w := &Window{c: c, mw: mw, bound: RemoteRegion{Key: mw.RKey()}}
	if c.windows == nil {
		c.windows = map[*Window]struct{}{}
	}
	c.windows[w] = struct{}{}
	return w, nil
}

// Close frees the window: its key becomes invalid. On rxe a region cannot be closed before its
// windows; on mlx5 they grant nothing any more.
func (w *Window) Close() error {
	if w == nil {
		return verbs.ErrClosed
	}
	w.c.windowsMu.Lock()
	defer w.c.windowsMu.Unlock()
	return w.close()
}

func (w *Window) close() error {
	err := w.mw.Close()
	if err == nil {
		w.closed.Store(true)
		delete(w.c.windows, w)
	}
	return err
}

// Region returns the part that the window was bound to last, with its key, see [Bind].
func (w *Window) Region() RemoteRegion {
	w.c.send.mu.Lock()
	defer w.c.send.mu.Unlock()
	return w.bound
}

// binding checks the request of a [Bind], and returns its arguments.
func (o *Op) binding(c *Conn) (verbs.MWBind, error) {
	w := o.window
	switch {
	case w == nil:
		return verbs.MWBind{}, fmt.Errorf("no window: %w", verbs.ErrRange)
	case w.c != c:
		return verbs.MWBind{}, fmt.Errorf("window of another connection: %w", ErrForeign)
	case w.closed.Load():
		return verbs.MWBind{}, fmt.Errorf("window: %w", verbs.ErrClosed)
	case o.Spans[0].Len < 1:
		return verbs.MWBind{}, fmt.Errorf("window of %d bytes: %w", o.Spans[0].Len, verbs.ErrRange)
	}
	part := o.Spans[0]
	need := o.access & verbs.AccessLocalWrite
	if o.access&(verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic) != 0 {
		need = verbs.AccessLocalWrite
	}
	if part.Region.access&need != need {
		return verbs.MWBind{}, fmt.Errorf("%v: %w", part.Region, ErrAccess)
	}
	access := o.access & remoteAccess
	if access == 0 {
		return verbs.MWBind{}, fmt.Errorf("window without access for the peer: %w", ErrAccess)
	}
	mr := part.Region.mr
	return verbs.MWBind{
		RKey: w.bound.Key, NewRKey: verbs.NextRKey(w.bound.Key), LKey: mr.LKey(),
		Addr: mr.Addr() + uint64(part.Off), Length: uint64(part.Len), Access: access,
	}, nil
}

// bound returns the region that the peer may use after a binding.
func bound(b *verbs.MWBind) RemoteRegion {
	return RemoteRegion{Addr: b.Addr, Len: int(b.Length), Key: b.NewRKey, Access: b.Access}
}
