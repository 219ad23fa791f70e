package rconn

import (
	"fmt"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// Window is a memory window of type 2: a key to a part of a region that requests bind and
// invalidate, without the cost of a registration. rxe enforces its key and its access,
// but not its bounds: a peer with the key reaches all of the region, see [uverbs.MW]. siw
// has no windows.
type Window struct {
	c  *Conn
	mw *uverbs.MW

	mu  sync.Mutex
	key uint32
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
	w := &Window{c: c, mw: mw, key: mw.RKey()}
	if c.windows == nil {
		c.windows = map[*Window]struct{}{}
	}
	c.windows[w] = struct{}{}
	return w, nil
}

// Close frees the window: its key becomes invalid. On rxe a region cannot be closed while
// windows are bound to it, and on mlx5 its windows grant nothing any more.
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
		delete(w.c.windows, w)
	}
	return err
}

// PostBind binds a window to a part of a region made with [verbs.AccessMWBind], for the
// peer to use with this access: [RemoteWrite], [RemoteRead] and [RemoteAtomic], or
// several of them. Those that write need a region with [LocalWrite]. PostBind returns the
// part with its new key, which must be sent to the peer, for example by
//
//	advert, err := part.AppendAdvert(nil)
//	...
//	err = c.PostSendInline(id, flags, advert)
//
// and [Conn.AwaitAdvert]. The part can be used once the request has completed; requests
// posted later, such as that message, are executed after it. A window that is bound must
// be invalidated, by [Conn.PostInvalidate] or the peer's [Conn.PostSendInv], before it is
// bound again.
func (c *Conn) PostBind(id uint64, flags verbs.SendFlags, w *Window, part Span, access verbs.Access) (RemoteRegion, error) {
	r, err := c.bind(id, flags, w, part, access)
	if err != nil {
		return RemoteRegion{}, c.fail("post BIND_MW to", err)
	}
	return r, nil
}

func (c *Conn) bind(id uint64, flags verbs.SendFlags, w *Window, part Span, access verbs.Access) (RemoteRegion, error) {
	switch err := c.checkUsable(); {
	case err != nil:
		return RemoteRegion{}, err
	case w == nil:
		return RemoteRegion{}, fmt.Errorf("no window: %w", verbs.ErrRange)
	case w.c != c:
		return RemoteRegion{}, fmt.Errorf("window of another connection: %w", ErrForeign)
	case part.Len < 1:
		return RemoteRegion{}, fmt.Errorf("window of %d bytes: %w", part.Len, verbs.ErrRange)
	}
	if err := part.check(c.ep.PD, verbs.AccessMWBind); err != nil {
		return RemoteRegion{}, err
	}
	need := access & verbs.AccessLocalWrite
	if access&(verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic) != 0 {
		need = verbs.AccessLocalWrite
	}
	if part.Region.access&need != need {
		return RemoteRegion{}, fmt.Errorf("%v: %w", part.Region, ErrAccess)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	mr := part.Region.mr
	r := RemoteRegion{Addr: mr.Addr() + uint64(part.Off), Len: part.Len, Key: verbs.NextRKey(w.key), Access: access & remoteAccess}
	if r.Access == 0 {
		return RemoteRegion{}, fmt.Errorf("window without access for the peer: %w", ErrAccess)
	}
	bind := verbs.MWBind{RKey: w.key, NewRKey: r.Key, LKey: mr.LKey(), Addr: r.Addr, Length: uint64(r.Len), Access: r.Access}
	wr := verbs.SendWR{ID: id, Opcode: verbs.OpBindMW, Flags: flags, Bind: &bind}
	spans := [...]Span{part}
	if err := c.send.lockAndPost(&request{wr: wr, bind: true}, spans[:]); err != nil {
		return RemoteRegion{}, err
	}
	w.key = r.Key
	return r, nil
}
