//go:build linux

package rsock

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

const idleBuffer = 8 << 10

// idlePair makes a connection and returns the ends of Dial and of Accept.
func idlePair(t *testing.T, device string, dialing, accepting Options) (a, b *Conn) {
	t.Helper()
	l := labtest.Must((&ListenConfig{Options: accepting}).Listen(t.Context(), "rdma", labtest.AddrOf(device)+":0"))(t)
	defer l.Close()
	d := Dialer{Options: dialing}
	x, y := labtest.DialAccept(t, func() (net.Conn, error) { return d.Dial("rdma", l.Addr().String()) }, l.Accept)
	for _, c := range []net.Conn{x, y} {
		labtest.Close(t, c)
		c.SetDeadline(time.Now().Add(3 * time.Minute))
	}
	return x.(*Conn), y.(*Conn)
}

// both sends data in both directions at the same time, in pieces of the sizes in turn, and compares it.
func both(t *testing.T, a, b *Conn, data []byte, sizes ...int) {
	t.Helper()
	var all sync.WaitGroup
	for _, ends := range [][2]*Conn{{a, b}, {b, a}} {
		all.Go(func() {
			for i, rest := 0, data; len(rest) > 0; i++ {
				n, err := ends[0].Write(rest[:min(sizes[i%len(sizes)], len(rest))])
				if rest = rest[n:]; err != nil {
					t.Error(err)
					return
				}
			}
		})
		all.Go(func() {
			got := make([]byte, len(data))
			if _, err := io.ReadFull(ends[1], got); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%v, or other data", err)
			}
		})
	}
	all.Wait()
}

// TestGrow tests that the rings of connections with little data stay small, that busy ones get
// their full size while data is in both rings, and that the send ring becomes small again when
// nothing is written.
func TestGrow(t *testing.T) {
	labtest.RequireBoth(t)
	data := labtest.RandomBytes(1, labtest.Rounds(2<<20, 1<<20))
	labtest.Each(t, func(t *testing.T, device string) {
		small := Options{IdleBuffer: idleBuffer, ReadBuffer: 100 << 10, WriteBuffer: 60 << 10}
		for name, peer := range map[string]Options{"small": small, "full": {}} {
			t.Run("peer "+name, func(t *testing.T) {
				a, b := idlePair(t, device, peer, small)
				sizes := func(read, write int) {
					t.Helper()
					if s := b.Stats(); s.ReadBuffer != read || s.WriteBuffer != write {
						t.Errorf("rings of %d and %d bytes, not %d and %d", s.ReadBuffer, s.WriteBuffer, read, write)
					}
				}
				ring := idleBuffer - sgeCount*sgeSize
				for range 200 {
					both(t, a, b, data[:100], 100)
				}
				sizes(ring, idleBuffer)
				both(t, a, b, data, 1, 3000, 100_000, 20)
				sizes(small.ReadBuffer, small.WriteBuffer)
				both(t, a, b, data, 20_000)
				sizes(small.ReadBuffer, small.WriteBuffer)
				b.writer.mu.Lock() // a Write, which may not have posted
				b.control.probe(true)
				b.writer.mu.Unlock()
				labtest.Until(t, "the test to complete", func() bool {
					b.control.probe(false)
					b.mu.Lock()
					defer b.mu.Unlock()
					return b.control.used == 0
				})
				sizes(small.ReadBuffer, small.WriteBuffer)
				for range 2 {
					if err := b.control.probe(true); err != nil {
						t.Fatal(err)
					}
					labtest.Until(t, "the send ring to become small", func() bool {
						b.control.probe(false)
						return b.Stats().WriteBuffer == idleBuffer
					})
					if s := b.Stats(); s.Unsent != 0 {
						t.Errorf("%d bytes are not sent", s.Unsent)
					}
					both(t, a, b, data[:1<<20], 50_000)
					sizes(small.ReadBuffer, small.WriteBuffer)
				}
			})
		}
	})
}

// TestWholeRing tests that a side that accepts and says nothing offers its whole ring on devices where it may send first.
func TestWholeRing(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		if labtest.IWARP(t, device) {
			t.Skip("the side that accepts waits for the first message")
		}
		const size = 64 << 10
		a, b := idlePair(t, device, Options{}, Options{ReadBuffer: size, IdleBuffer: size})
		a.SetDeadline(time.Now().Add(20 * time.Second))
		n, err := a.Write(make([]byte, size-sgeCount*sgeSize))
		if err != nil {
			t.Errorf("%d of %d bytes fit: %v", n, size, err)
		}
		labtest.Must(io.ReadFull(b, make([]byte, n)))(t) // or closing b resets a
	})
}

// TestNoGrowth tests that a busy ring for whose full size there is no memory stays as it is, and is asked to grow once.
func TestNoGrowth(t *testing.T) {
	if strconv.IntSize == 32 {
		t.Skip("the system may have as much as a process of 32 bits can ask for")
	}
	data := labtest.RandomBytes(1, 1<<20)
	labtest.Each(t, func(t *testing.T, device string) {
		small := Options{IdleBuffer: idleBuffer, ReadBuffer: 100 << 10, WriteBuffer: 60 << 10}
		a, b := idlePair(t, device, small, small)
		b.mu.Lock()
		b.opt.ReadBuffer = math.MaxInt / 2
		b.mu.Unlock()
		both(t, a, b, data, 3000)
		b.mu.Lock()
		defer b.mu.Unlock()
		if n := len(b.reader.ring.buf); n != idleBuffer-sgeCount*sgeSize || b.opt.ReadBuffer != n {
			t.Errorf("a ring of %d bytes, which is to grow to %d", n, b.opt.ReadBuffer)
		}
	})
}

// TestIdleMemory counts the locked memory of both ends of idle connections. On adapters it
// includes their queues.
func TestIdleMemory(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		opt := Options{IdleBuffer: idleBuffer}
		idlePair(t, device, opt, opt) // what all connections share
		labtest.SettledInventory(t)   // memory that earlier tests give back would count
		before := pinned(t)
		const conns = 20
		for range conns {
			a, b := idlePair(t, device, opt, opt)
			both(t, a, b, []byte("hello"), 5)
		}
		each := (pinned(t) - before) / (2 * conns)
		t.Logf("%d KiB of locked memory for each end", each>>10)
		if each <= 0 || each > 64<<10 {
			t.Errorf("%d bytes of locked memory for each end", each)
		}
	})
}

// pinned returns the bytes of memory that the process has registered.
func pinned(t *testing.T) (n int) {
	t.Helper()
	_, rest, _ := strings.Cut(string(labtest.Must(os.ReadFile("/proc/self/status"))(t)), "VmPin:")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Fatal(err)
	}
	return n << 10
}

// TestHostileGrowth tests that a peer that claims data which it did not write, also across the end
// of the small ring, gets the listener to register the larger ring once, and no more than was
// offered.
func TestHostileGrowth(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		l := labtest.Must((&ListenConfig{Options: Options{IdleBuffer: idleBuffer}}).Listen(t.Context(), "rdma", labtest.AddrOf(device)+":0"))(t)
		defer l.Close()
		peer := dialHostile(t, device, l.Addr().String(), validHello)
		c := labtest.Must(l.Accept())(t).(*Conn)
		defer c.Close()
		c.SetDeadline(time.Now().Add(20 * time.Second))
		half := idleBuffer/2 - sgeSize
		claim := func(n int) {
			t.Helper()
			peer.sendMessages(opData | message(n))
			got := make([]byte, n)
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, make([]byte, n)) {
				t.Fatalf("%v, or bytes that nobody wrote", err)
			}
		}
		for c.Stats().ReadBuffer < defaultBuffer {
			claim(half)
		}
		claim(half + 1) // the last of the small ring, and the first of the large one
		claim(defaultBuffer/2 - 1)
		c.mu.Lock()
		offered := int(c.reader.ring.offered - c.reader.ring.received)
		c.mu.Unlock()
		if offered > defaultBuffer {
			t.Errorf("%d bytes are offered", offered)
		}
		peer.sendMessages(opData | message(offered+1))
		if _, err := io.Copy(io.Discard, c); !errors.Is(err, ErrProtocol) {
			t.Error(err)
		}
	})
}
