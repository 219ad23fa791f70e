package s3rdma

import (
	"fmt"
	"io"
	"math/bits"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/uverbs"
)

// buffer is memory that one transfer at a time uses. It is a region of its own, because after a
// transfer with an unknown end only the end of its key keeps the server from the memory.
type buffer struct {
	c    *Client
	mem  *mmap.Buffer
	mr   *uverbs.MR // nil until an offer registers it, and after revoke
	lost error      // why the key could not be ended: the memory is never used again
	refs atomic.Int32
}

// buffer takes a buffer of at least n bytes.
func (c *Client) buffer(n int) (*buffer, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, errClientClosed
	}
	best := -1
	for i, b := range c.idle {
		if l := len(b.mem.Bytes()); l >= n && l <= 2*max(n, 64<<10) && (best < 0 || l <= len(c.idle[best].mem.Bytes())) {
			best = i
		}
	}
	if best >= 0 {
		b := c.idle[best]
		c.idle = slices.Delete(c.idle, best, best+1)
		c.lent++
		c.mu.Unlock()
		b.refs.Store(1)
		return b, nil
	}
	// Sizes are multiples of an eighth of a power of two, so that objects of similar sizes find each
	// other's buffers.
	step := max(1<<bits.Len(uint(n-1))>>3, 4096)
	size := min((n+step-1)/step*step, max(n, MaxSize))
	var old []*buffer
	for c.registered+size > c.opt.Memory && len(c.idle) > 0 {
		old, c.idle = append(old, c.idle[0]), c.idle[1:]
		c.registered -= len(old[len(old)-1].mem.Bytes())
	}
	room := c.opt.Memory - c.registered
	if room >= size {
		c.registered += size
		c.lent++
	}
	c.mu.Unlock()
	for _, b := range old {
		b.free()
	}
	if room < size {
		return nil, fmt.Errorf("%d bytes of memory: %d of at most %d (ClientOptions.Memory) are in use: close the bodies of answers, or raise it", size, c.opt.Memory-room, c.opt.Memory)
	}
	b := &buffer{c: c}
	b.refs.Store(1)
	var err error
	if b.mem, err = mmap.NewBuffer(size, mmap.BufferOptions{}); err != nil {
		c.mu.Lock()
		c.registered -= size
		c.lent--
		c.mu.Unlock()
		return nil, err
	}
	return b, nil
}

// register makes a key to the memory, unless there is one.
func (b *buffer) register() (err error) {
	if b.lost != nil {
		return b.lost
	}
	if b.mr == nil {
		// The kernel may give the next region the key of the one that was closed last, as mlx5's cache of keys does
		// (pop_mkey_locked in 6.12): with the same address too, a server would reach it by the token of the former.
		// Only the device interprets this address; the lower bits are those of the memory, for its page tables.
		iova := b.mem.Addr() | b.c.regions.Add(1)&0x7fff<<48
		b.mr, err = b.c.pd.RegisterMR(b.mem.Bytes(), b.c.opt.QP.Access|verbs.AccessLocalWrite, uverbs.MROptions{IOVA: &iova})
	}
	return err
}

// revoke ends the key: when it returns, no server reaches the memory.
func (b *buffer) revoke() {
	if b.mr == nil {
		return
	}
	if err := b.mr.Close(); err != nil {
		b.lost = fmt.Errorf("memory is still open to a server: %w", err)
		b.c.log.Error("memory is not used again", "bytes", len(b.mem.Bytes()), "err", b.lost)
		return
	}
	b.mr = nil
}

// drop ends a use of the buffer, and after the last one returns it.
func (b *buffer) drop() {
	if b.refs.Add(-1) > 0 {
		return
	}
	c := b.c
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lent--
	if b.lost == nil {
		c.idle = append(c.idle, b)
	}
}

func (b *buffer) free() error {
	if b.revoke(); b.lost != nil {
		return b.lost
	}
	return b.mem.Close()
}

// Body is registered memory as the body of a request or an answer. A server moves it without a copy
// here. Its memory counts in [ClientOptions.Memory] until Close. One request at a time has it.
type Body struct {
	mu   sync.Mutex
	b    *buffer // nil after Close
	data []byte
	off  int
}

// NewBody returns n bytes for the body of a request, to be filled by [Body.Bytes]. Requests do not
// close it, if they have it from [Client.Offer]; net/http does.
func (c *Client) NewBody(n int) (*Body, error) {
	if n <= 0 || n > MaxSize {
		return nil, fmt.Errorf("s3rdma: make body: %d bytes: want 1 to %d", n, MaxSize)
	}
	b, err := c.buffer(n)
	if err != nil {
		return nil, fmt.Errorf("s3rdma: make body: %w", err)
	}
	return &Body{b: b, data: b.mem.Bytes()[:n]}, nil
}

// Bytes returns all bytes, or nil after Close.
func (y *Body) Bytes() []byte {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.b == nil {
		return nil
	}
	return y.data
}

// Len returns the number of bytes that are not read.
func (y *Body) Len() int {
	y.mu.Lock()
	defer y.mu.Unlock()
	return len(y.data) - y.off
}

// Read implements [io.Reader].
func (y *Body) Read(p []byte) (int, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.b == nil {
		return 0, http.ErrBodyReadAfterClose
	}
	n := copy(p, y.data[y.off:])
	y.off += n
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// WriteTo implements [io.WriterTo]. w gets the memory itself, in one call.
func (y *Body) WriteTo(w io.Writer) (int64, error) {
	b, rest := y.use()
	if b == nil {
		return 0, http.ErrBodyReadAfterClose
	}
	defer b.drop() // Close may come while w writes
	n, err := w.Write(rest)
	y.mu.Lock()
	y.off = min(y.off+n, len(y.data))
	y.mu.Unlock()
	if err == nil && n < len(rest) {
		err = io.ErrShortWrite
	}
	return int64(n), err
}

// use returns the buffer, which the caller drops, and the bytes that are not read.
func (y *Body) use() (*buffer, []byte) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.b == nil {
		return nil, nil
	}
	y.b.refs.Add(1)
	return y.b, y.data[y.off:]
}

// Seek implements [io.Seeker].
func (y *Body) Seek(offset int64, whence int) (int64, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	switch whence {
	case io.SeekCurrent:
		offset += int64(y.off)
	case io.SeekEnd:
		offset += int64(len(y.data))
	}
	if offset < 0 || offset > int64(len(y.data)) {
		return 0, fmt.Errorf("s3rdma: seek to byte %d of %d", offset, len(y.data))
	}
	y.off = int(offset)
	return offset, nil
}

// Close returns the memory.
func (y *Body) Close() error {
	if y == nil {
		return fmt.Errorf("s3rdma: close body: %w", verbs.ErrClosed)
	}
	y.mu.Lock()
	b := y.b
	y.b = nil
	y.mu.Unlock()
	if b != nil {
		b.drop()
	}
	return nil
}
