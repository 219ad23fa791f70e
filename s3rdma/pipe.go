package s3rdma

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/goverbs/verbs"
)

var errTooLong = errors.New("more bytes than the client's memory has, or the object")

// ring is the memory of a transfer: slots that the device fills or empties while the program has another.
type ring struct {
	r    *Remote
	ctx  context.Context // of the request, as in http.Request
	mem  []byte
	size int64 // of the object
}

// ring reserves memory for an object of size bytes.
func (r *Remote) ring(ctx context.Context, op verbs.Opcode, size int64) (ring, error) {
	var mem []byte
	r.mu.Lock()
	defer r.mu.Unlock()
	if size == 0 {
		r.op = op
		return ring{r, ctx, nil, 0}, nil
	}
	opt := &r.s.opt
	err := r.start(ctx, op, int(min(size, int64(opt.Part)*int64(opt.Parts))))
	if r.block != nil {
		mem = r.block.Bytes()
		if r.s.rxe && op == verbs.OpRDMARead {
			clear(mem) // see prove
		}
	}
	return ring{r, ctx, mem, size}, err
}

// slots returns the number of slots.
func (b *ring) slots() int { return (len(b.mem) + b.r.s.opt.Part - 1) / b.r.s.opt.Part }

// slot returns the memory for part i of the object, and that part's offset in the ring and in the object.
func (b *ring) slot(i int) (mem []byte, at int, off int64) {
	part := b.r.s.opt.Part
	at, off = i%b.slots()*part, int64(i)*int64(part)
	return b.mem[at:min(at+part, len(b.mem), at+int(min(b.size-off, int64(part))))], at, off
}

// post posts the first n bytes of part i.
func (b *ring) post(i, n int) error {
	if err := b.r.step(eventMove); err != nil { // which has given the memory back
		return err
	}
	_, at, off := b.slot(i)
	sge := b.r.block.SGE(b.r.s.pd, at, n)
	err := b.r.post(sge, off)
	if err == nil && off+int64(n) == b.size {
		err = b.r.prove(sge, off)
	}
	return err
}

// Reader reads a client's memory, part after part, ahead of the program. It commits the transfer as the
// last byte is read.
type Reader struct {
	ring
	rest  []byte // of the part that the program reads
	parts int    // that the program has got
	ahead int    // that have been posted
	off   int64
	err   error
}

// Reader returns a reader for all of the client's memory. An error that matches [ErrDeclined] means that
// the bytes have to come by HTTP. Once it has none, the transfer can fail, but is not declined.
func (r *Remote) Reader(ctx context.Context) (*Reader, error) {
	if r.size > r.s.opt.Limits.Size {
		return nil, r.s.decline(r.peer, ReasonLength, fmt.Errorf("object of %d bytes, Limits.Size is %d", r.size, r.s.opt.Limits.Size))
	}
	b, err := r.ring(ctx, verbs.OpRDMARead, r.size)
	if err == nil && r.size == 0 {
		err = r.Commit(ctx)
	}
	if err != nil {
		return nil, err
	}
	return &Reader{ring: b}, nil
}

// next gets the next part, with mu held.
func (b *Reader) next() error {
	if b.err == nil && b.off == b.size {
		return io.EOF
	}
	for n := int64(b.r.s.opt.Part); b.err == nil && b.ahead < b.parts+b.slots() && int64(b.ahead)*n < b.size; {
		mem, _, _ := b.slot(b.ahead)
		if b.err = b.post(b.ahead, len(mem)); b.err == nil {
			b.ahead++
		}
	}
	if b.err == nil {
		n := b.parts + 1
		if int64(n)*int64(b.r.s.opt.Part) >= b.size {
			n = b.r.posted // with what proves the last
		}
		b.err = b.r.wait(b.ctx, n)
	}
	if b.err == nil {
		b.rest, _, _ = b.slot(b.parts)
		b.parts++
	}
	return b.err
}

// more gets the next part if the program has taken the last one, with mu held.
func (b *Reader) more() error {
	if b.r.state >= stateCommitted && b.off < b.size { // the memory of rest is another transfer's by now
		return b.r.step(eventMove)
	}
	if len(b.rest) > 0 {
		return nil
	}
	return b.next()
}

// took counts n bytes of rest, and commits behind the last.
func (b *Reader) took(n int) error {
	b.off += int64(n)
	b.rest = b.rest[n:]
	if b.off < b.size {
		return nil
	}
	b.rest = nil
	if err := b.r.commit(b.ctx); err != nil {
		b.err = err
	}
	return b.err
}

// Read implements io.Reader.
func (b *Reader) Read(p []byte) (n int, err error) {
	b.r.mu.Lock()
	defer b.r.mu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	if err := b.more(); err != nil {
		return 0, err
	}
	n = copy(p, b.rest)
	return n, b.took(n)
}

// WriteTo implements io.WriterTo: it writes from registered memory, without a copy.
func (b *Reader) WriteTo(w io.Writer) (n int64, err error) {
	b.r.mu.Lock()
	defer b.r.mu.Unlock()
	for {
		if err := b.more(); err == io.EOF {
			return n, nil
		} else if err != nil {
			return n, err
		}
		var m int
		b.r.lend(func() { m, err = w.Write(b.rest) })
		n += int64(m)
		if b.r.state == stateClosed {
			return n, verbs.ErrClosed
		}
		if e := b.took(m); err == nil {
			err = e
		}
		if err != nil {
			return n, err
		}
	}
}

// Close ends the transfer, if it has not read everything.
func (b *Reader) Close() error {
	if b == nil {
		return verbs.ErrClosed
	}
	b.r.mu.Lock()
	defer b.r.mu.Unlock()
	if b.r.state < stateCommitted {
		return b.r.step(eventClose)
	}
	return nil
}

// read reports whether the program has read everything, and the error of the transfer.
func (b *Reader) read() (all bool, err error) {
	b.r.mu.Lock()
	defer b.r.mu.Unlock()
	return b.off == b.size && b.err == nil, b.err
}

// Writer writes a client's memory from its start on. Its memory is registered, so bytes that are read
// into [Writer.Buffer], or by [Writer.ReadFrom], are not copied.
type Writer struct {
	ring
	part  int    // that the program fills
	sent  int64  // bytes of the parts before it
	held  int    // bytes in it
	more  []byte // a byte that was read, and does not fit
	exact bool   // size is known
	err   error
}

// Writer returns a writer for an object of size bytes, or of any number if size is negative. An error that
// matches [ErrDeclined] means that the object has to go by HTTP, for example as it does not fit. Call
// [Writer.Commit] at the end, which fails if the object has fewer bytes.
func (r *Remote) Writer(ctx context.Context, size int64) (*Writer, error) {
	most := min(r.size, r.s.opt.Limits.Size)
	if size > most {
		return nil, r.s.decline(r.peer, ReasonLength, fmt.Errorf("object of %d bytes, the client's memory has %d, and Limits.Size is %d", size, r.size, r.s.opt.Limits.Size))
	}
	exact := size >= 0
	if !exact {
		size = most
	}
	b, err := r.ring(ctx, verbs.OpRDMAWrite, size)
	if err != nil {
		return nil, err
	}
	return &Writer{ring: b, exact: exact}, nil
}

// Buffer returns registered memory for the next bytes, of at least one. [Writer.Advance] sends them.
func (b *Writer) Buffer() ([]byte, error) {
	b.r.mu.Lock()
	defer b.r.mu.Unlock()
	return b.buffer()
}

func (b *Writer) buffer() ([]byte, error) {
	if b.err == nil && b.Len() == b.size {
		b.err = fmt.Errorf("%w: %d", errTooLong, b.size)
	}
	if b.err != nil {
		return nil, b.err
	}
	if err := b.r.step(eventMove); err != nil { // after the end
		return nil, err
	}
	mem, _, _ := b.slot(b.part)
	if b.held == len(mem) {
		if b.err = b.flush(); b.err != nil {
			return nil, b.err
		}
		mem, _, _ = b.slot(b.part)
	}
	return mem[b.held:], nil
}

// Advance counts the n bytes that the program has put at the start of [Writer.Buffer].
func (b *Writer) Advance(n int) error {
	b.r.mu.Lock()
	defer b.r.mu.Unlock()
	free := 0
	if b.Len() < b.size {
		mem, _, _ := b.slot(b.part)
		free = len(mem) - b.held
	}
	if n < 0 || n > free {
		return fmt.Errorf("advance %d bytes, Buffer has %d: %w", n, free, verbs.ErrRange)
	}
	b.held += n
	return nil
}

// Len returns the number of bytes that the program has written.
func (b *Writer) Len() int64 { return b.sent + int64(b.held) }

// flush sends the part that is full, or the last, and waits until the next one is free.
func (b *Writer) flush() error {
	if err := b.post(b.part, b.held); err != nil {
		return err
	}
	b.sent += int64(b.held)
	b.part, b.held = b.part+1, 0
	return b.r.wait(b.ctx, b.part-b.slots()+1)
}

// Write implements io.Writer.
func (b *Writer) Write(p []byte) (n int, err error) {
	b.r.mu.Lock()
	defer b.r.mu.Unlock()
	for len(p) > 0 {
		buf, err := b.buffer()
		if err != nil {
			return n, err
		}
		m := copy(buf, p)
		b.held, n, p = b.held+m, n+m, p[m:]
	}
	return n, nil
}

// ReadFrom implements io.ReaderFrom: it reads into registered memory, without a copy.
func (b *Writer) ReadFrom(src io.Reader) (n int64, err error) {
	b.r.mu.Lock()
	defer b.r.mu.Unlock()
	for {
		full := b.err == nil && b.Len() == b.size
		var buf []byte
		if full {
			buf = make([]byte, 1) // src may be at its end
		} else if buf, err = b.buffer(); err != nil {
			return n, err
		}
		var m int
		b.r.lend(func() { m, err = src.Read(buf) })
		n += int64(m)
		if full && m > 0 {
			b.more = buf
			_, err := b.buffer()
			return n, err
		}
		b.held += m
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// rescue returns all bytes that were written, and closes the transfer, if it has failed or is too long
// while the ring still has them.
func (b *Writer) rescue() ([]byte, error) {
	b.r.mu.Lock()
	defer b.r.mu.Unlock()
	if b.err == nil || b.r.state == stateClosed || b.Len() > int64(len(b.mem)) {
		return nil, nil
	}
	reason := ReasonFailed
	if errors.Is(b.err, errTooLong) {
		reason = ReasonLength
	}
	all := append(append(make([]byte, 0, len(b.mem)+1), b.mem[:b.Len()]...), b.more...)
	b.r.step(eventClose)
	return all, b.r.s.decline(b.r.peer, reason, b.err)
}

// fail counts a transfer that has ended by an error of the program, as the others are.
func (b *Writer) fail(err error) error {
	b.r.mu.Lock()
	defer b.r.mu.Unlock()
	if b.r.state < stateFailed {
		err = b.r.fail(err)
	}
	return err
}

// Commit sends what the program has written, and commits the transfer.
func (b *Writer) Commit() error {
	b.r.mu.Lock()
	defer b.r.mu.Unlock()
	if b.err == nil && b.exact && b.Len() != b.size {
		return fmt.Errorf("the server wrote %d of %d bytes", b.Len(), b.size)
	}
	if b.err == nil && b.held > 0 {
		b.err = b.flush()
	}
	if b.err == nil {
		b.err = b.r.commit(b.ctx)
	}
	return b.err
}
