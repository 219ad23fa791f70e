//go:build linux

package rmsg_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
)

var messages = flag.Int("messages", 20_000, "messages of TestManyPeers, on each device")

// traffic returns the seq-th message of peer: most are small, some large. It includes a
// number and a checksum if there is room.
func traffic(peer, seq int, room []byte) []byte {
	r := rand.New(rand.NewPCG(uint64(peer), uint64(seq)))
	most := 200
	switch n := r.IntN(10_000); {
	case n < 4:
		most = 1 << 20
	case n < 100:
		most = 32 << 10
	case n < 1000:
		most = 4 << 10
	}
	b := room[:r.IntN(most+1)]
	copy(b, noise[r.IntN(1<<16):])
	if len(b) >= 12 {
		binary.BigEndian.PutUint32(b, uint32(peer))
		binary.BigEndian.PutUint32(b[4:], uint32(seq))
		binary.BigEndian.PutUint32(b[8:], 0)
		binary.BigEndian.PutUint32(b[8:], crc32.ChecksumIEEE(b))
	}
	return b
}

var noise = func() []byte {
	b := make([]byte, 2<<20)
	r := rand.NewChaCha8([32]byte{})
	r.Read(b)
	return b
}()

// pinnedBytes returns how much memory of this process is registered, in bytes.
func pinnedBytes(t testing.TB) int {
	t.Helper()
	text := labtest.Must(os.ReadFile("/proc/self/status"))(t)
	_, rest, _ := strings.Cut(string(text), "VmPin:")
	var kib int
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// TestManyPeers sends from many peers to one loop, which holds the messages of one peer
// until all others are done. No message is lost, duplicated, damaged or out of order, the
// slow peer does not delay the others, and memory stays within bounds.
func TestManyPeers(t *testing.T) {
	const peers, slow = 64, 0
	each := max(*messages/peers, 50)
	labtest.Each(t, func(t *testing.T, device string) {
		opt := rmsg.Options{Credits: 16, Eager: 2048, MaxMessage: 1 << 20, Window: 1 << 20, SendQueue: 16, ConnectTimeout: patience}
		noRNR(t, device)
		before := pinnedBytes(t)
		var (
			mu       sync.Mutex
			held     []*rmsg.Buffer // messages of the slow peer
			finished atomic.Int32
			waiting  = make(chan struct{}) // the others are done
			released bool
			ended    = make(chan error, peers)
			received = map[*rmsg.Conn]*int{} // numbers of messages; used only by the loop
			expected = make([]byte, 1<<20)   // used only by the loop
		)
		server := opt
		server.Callbacks = rmsg.Callbacks{
			Request: func(r *rmsg.Request) {
				s, err := r.Accept(nil)
				if err != nil {
					t.Error(err)
					return
				}
				received[s] = new(int)
			},
			Message: func(s *rmsg.Conn, b *rmsg.Buffer) {
				got, peer := received[s], int(binary.BigEndian.Uint32(s.PrivateData()))
				if want := traffic(peer, *got, expected); !bytes.Equal(want, b.Bytes()) {
					t.Errorf("message %d of peer %d is another: %d bytes, not %d", *got, peer, len(b.Bytes()), len(want))
				}
				if *got++; *got == each && peer != slow {
					if finished.Add(1) == peers-1 {
						close(waiting)
					}
				}
				if peer == slow {
					mu.Lock()
					defer mu.Unlock()
					if !released {
						if held = append(held, b); len(held) > opt.Credits {
							t.Errorf("%d messages came with %d credits", len(held), opt.Credits)
						}
						return
					}
				}
				b.Free()
			},
			Disconnected: func(s *rmsg.Conn, why error) {
				if got := *received[s]; got != each {
					t.Errorf("%d messages of %d came: %v", got, each, why)
				}
				ended <- why
			},
		}
		ln := listen(t, run(t, server), device)
		clients := run(t, opt)
		ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute)
		defer cancel()
		start := time.Now()
		var up, sending sync.WaitGroup
		up.Add(peers)
		for peer := range peers {
			id := binary.BigEndian.AppendUint32(nil, uint32(peer))
			dialer := rmsg.Dialer{Loop: clients, PrivateData: id}
			c := labtest.Must(dialer.Connect(ln.Addr().String()))(t)
			sending.Go(func() {
				err := c.Wait(ctx)
				up.Done()
				room := make([]byte, 1<<20)
				for i := 0; i < each && err == nil; i++ {
					err = c.Send(ctx, traffic(peer, i, room))
				}
				if err == nil {
					err = c.Shutdown(ctx)
				}
				if err != nil && ctx.Err() == nil {
					t.Errorf("peer %d: %v", peer, err)
					cancel()
				}
			})
		}
		up.Wait()
		connected := time.Since(start)
		start = time.Now()
		var peak int
		for wait := true; wait; {
			select {
			case <-waiting:
				wait = false
			case <-ctx.Done():
				t.Fatalf("%d peers of %d are done", finished.Load(), peers)
			case <-time.After(50 * time.Millisecond):
				peak = max(peak, pinnedBytes(t)-before)
			}
		}
		others := time.Since(start)
		// Release the slow peer. Messages that arrive meanwhile are freed at
		// once.
		mu.Lock()
		released = true
		if len(held) == 0 && each > opt.Credits {
			t.Error("the slow one had nothing")
		}
		for _, b := range held {
			b.Free()
		}
		mu.Unlock()
		sending.Wait()
		for range peers {
			if why := <-ended; why != io.EOF {
				t.Errorf("a connection of the server ended with %v", why)
			}
		}
		// On both sides: the receives, the send buffer, large messages (rounded
		// up), and the cache.
		window := (opt.Window + 8192) * 9 / 8
		bound := 2*peers*((opt.Credits+20)*(2048+64)+(64<<10)+window) + 2*(4<<20)
		if peak > bound || peak == 0 && !labtest.Soft { // which pins nothing
			t.Errorf("%d bytes were registered, of at most %d", peak, bound)
		}
		t.Logf("%d messages of %d peers: connected in %v, sent in %v (%.0f/s); %.1f MiB registered at most", peers*each, peers, connected, others, float64((peers-1)*each)/others.Seconds(), float64(peak)/(1<<20))
	})
}
