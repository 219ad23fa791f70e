package workload

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"syscall"
	"time"

	"github.com/goverbs/verbs/rsock"
)

// RSock uses package rsock: bytes in both directions at the same time, in pieces of all sizes.
var RSock = &Layer{Name: "rsock", Listen: listenStreams, Dial: dialStream, PeerGoneErrors: []error{syscall.ECONNRESET, syscall.EPIPE, syscall.ETIMEDOUT}}

// handshakeTimeout is long, as machines under load may be slow.
const handshakeTimeout = time.Minute

// Stream is an end of layer RSock.
type Stream struct {
	*rsock.Conn

	side
}

// abortOnDone makes calls end with ctx, until the next call of bound.
func abortOnDone(ctx context.Context, c net.Conn) (stop func() bool) {
	c.SetDeadline(time.Time{})
	return context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
}

// forChunks calls do with pieces of the rest of b until do has processed all of it.
func forChunks(b []byte, do func([]byte) (int, error)) error {
	const most = 256 << 10
	for len(b) > 0 {
		n, err := do(b[:min(1+rand.IntN(most)>>rand.IntN(16), len(b))])
		if b = b[n:]; err != nil {
			return fmt.Errorf("%w, %d bytes from the end", err, len(b))
		}
	}
	return nil
}

// exchange writes head and n bytes while it reads n bytes, which it checks.
func (p *Stream) exchange(head []byte, n int) error {
	sent := make(chan error, 1)
	go func() { sent <- forChunks(append(head, p.mine.Fill(make([]byte, n), p.sent)...), p.Write) }()
	got := make([]byte, n)
	err := forChunks(got, p.Read)
	if err != nil {
		p.SetDeadline(time.Unix(1, 0))
		return fmt.Errorf("read: %w", errors.Join(err, <-sent))
	}
	if err := <-sent; err != nil {
		return fmt.Errorf("write: %w", err)
	}
	p.sent++
	return p.theirs.Check("stream", got, p.sent-1, n)
}

// readUint64 reads 8 bytes.
func (p *Stream) readUint64() (uint64, error) {
	var b [8]byte
	_, err := io.ReadFull(p, b[:])
	return binary.BigEndian.Uint64(b[:]), err
}

func listenStreams(ctx context.Context, addr string, report func(error)) (*Server, error) {
	// Close waits, so that its errors are reported, as those of the dialing side.
	l, err := (&rsock.ListenConfig{Options: rsock.Options{Linger: 10 * time.Second}, HandshakeTimeout: handshakeTimeout}).Listen(ctx, "rdma", addr)
	if err != nil {
		return nil, err
	}
	accept := func(context.Context) (net.Conn, error) { return l.Accept() }
	return Serve(ctx, l, accept, func(ctx context.Context, c net.Conn) (err error) {
		p := &Stream{Conn: c.(*rsock.Conn)}
		defer func() { err = errors.Join(err, c.Close()) }()
		defer abortOnDone(ctx, c)()
		k, err := p.readUint64() // the key; lengths follow
		p.side = newSide(Key(k).Peer())
		for err == nil {
			var n uint64
			if n, err = p.readUint64(); err == nil {
				if n > 1<<30 {
					return fmt.Errorf("%w: stream of %d bytes", ErrData, n)
				}
				err = p.exchange(nil, int(n))
			}
		}
		if err == io.EOF { // between streams
			return nil
		}
		return err
	}, report, nil), nil
}

func dialStream(ctx context.Context, addr string) (Session, error) {
	c, err := new(rsock.Dialer).DialContext(ctx, "rdma", addr)
	if err != nil {
		return nil, err
	}
	return &Stream{Conn: c.(*rsock.Conn), side: newSide(Key(rand.Uint64()))}, nil
}

// Round writes n bytes while it reads as many.
func (p *Stream) Round(ctx context.Context, n int) error {
	defer abortOnDone(ctx, p.Conn)()
	var head []byte
	if p.sent == 0 {
		head = binary.BigEndian.AppendUint64(head, uint64(p.mine))
	}
	return p.exchange(binary.BigEndian.AppendUint64(head, uint64(n)), n)
}

// Poke makes the connection check whether the peer still exists.
func (p *Stream) Poke() { p.SetKeepAlivePeriod(time.Second) }

// Shutdown ends the stream in both directions.
func (p *Stream) Shutdown(ctx context.Context) error {
	defer abortOnDone(ctx, p.Conn)()
	if err := p.CloseWrite(); err != nil {
		return err
	}
	if n, err := p.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		return fmt.Errorf("%w: %d bytes after the end, %v", ErrData, n, err)
	}
	return nil
}
