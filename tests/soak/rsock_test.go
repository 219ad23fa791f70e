package soak

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"time"

	"github.com/goverbs/verbs/rsock"
)

// listenStreams has connections of a listener handled.
func listenStreams(s *side) (net.Listener, error) {
	return rsock.Listen("rdma", s.addr()+":0")
}

// bound has a connection's calls end with a context.
func bound(ctx context.Context, c net.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
}

// sendStream writes the first n bytes of a key's stream, in pieces, and closes
// that way.
func sendStream(c net.Conn, k key, n int, count *count) error {
	src, r := k.stream(), rand.New(rand.NewPCG(uint64(k), 1))
	b := make([]byte, 256<<10)
	for off := 0; off < n; {
		piece := b[:min(1+r.IntN(len(b))>>r.IntN(16), n-off)]
		src.Read(piece)
		if m, err := c.Write(piece); err != nil {
			return fmt.Errorf("write at %d+%d of %d, of key %#x: %w", off, m, n, k, err)
		}
		off += len(piece)
		if count != nil {
			count.add(len(piece))
		}
	}
	return c.(*rsock.Conn).CloseWrite()
}

// receiveStream reads a key's stream, of n bytes, and its end.
func receiveStream(c net.Conn, k key, n int, count *count) error {
	src, r := k.stream(), rand.New(rand.NewPCG(uint64(k), 2))
	b, want := make([]byte, 256<<10), make([]byte, 256<<10)
	for off := 0; ; {
		m, err := c.Read(b[:1+r.IntN(len(b))>>r.IntN(16)])
		src.Read(want[:m])
		if !bytes.Equal(b[:m], want[:m]) {
			return fmt.Errorf("stream of key %#x, read at %d: %w", k, off, differ(uint64(off), k, 0, b[:m], want[:m]))
		}
		off += m
		if count != nil && m > 0 {
			count.add(m)
		}
		if err == io.EOF && off == n {
			return nil
		}
		if err != nil || off > n {
			return fmt.Errorf("read at %d of %d, of key %#x: %w", off, n, k, err)
		}
	}
}

// pipe sends and receives at once.
func pipe(c net.Conn, mine key, out, in int, count *count) error {
	sent := make(chan error, 1)
	go func() { sent <- sendStream(c, mine, out, count) }()
	err := receiveStream(c, mine.answers(), in, count)
	if err != nil {
		c.SetDeadline(time.Unix(1, 0))
	}
	return errors.Join(err, <-sent)
}

// greeting is a key and how many bytes go each way: what a client first says.
const greeting = 16

// serveStreams sends a stream, and reads another, as the client says.
func serveStreams(s *side) (service, error) {
	l, err := listenStreams(s)
	if err != nil {
		return service{}, err
	}
	serve := func(ctx context.Context, c net.Conn) (err error) {
		defer func() { err = errors.Join(err, c.Close()) }()
		defer bound(ctx, c)()
		var hello [greeting]byte
		if _, err := io.ReadFull(c, hello[:]); err != nil {
			return fmt.Errorf("read the greeting: %w", err)
		}
		mine := key(binary.BigEndian.Uint64(hello[:])).answers()
		return pipe(c, mine, int(binary.BigEndian.Uint32(hello[12:])), int(binary.BigEndian.Uint32(hello[8:])), nil)
	}
	listen(s, "rsock", l.Accept, serve)
	return service{l.Addr().String(), l.Close, nil}, nil
}

func dialStreams(s *side, addr string, n *count) (client, error) {
	life := func(ctx context.Context, r *rand.Rand) (err error) {
		mine := key(r.Uint64())
		out, in := r.IntN(4<<20)>>r.IntN(8), r.IntN(4<<20)>>r.IntN(8)
		c, err := new(rsock.Dialer).DialContext(ctx, "rdma", addr)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		defer bound(ctx, c)()
		// Nobody says anything yet: a deadline must end a call, and nothing but it.
		c.SetReadDeadline(time.Now().Add(time.Duration(r.IntN(20)) * time.Millisecond))
		if m, err := c.Read(make([]byte, 1)); m != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("read with a deadline: %d, %v", m, err)
		}
		c.SetReadDeadline(time.Time{})
		if err := ctx.Err(); err != nil { // which had its deadline taken away
			return err
		}
		hello := binary.BigEndian.AppendUint64(nil, uint64(mine))
		hello = binary.BigEndian.AppendUint32(hello, uint32(out))
		hello = binary.BigEndian.AppendUint32(hello, uint32(in))
		if _, err := c.Write(hello); err != nil {
			return fmt.Errorf("write the greeting: %w", err)
		}
		return pipe(c, mine, out, in, n)
	}
	return client{life, func() error { return nil }}, nil
}
