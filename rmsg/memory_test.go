//go:build linux

package rmsg_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
)

// TestMemory compares the registered memory of 25 connections between two loops with the
// documented limits: idle, with traffic, and after it.
func TestMemory(t *testing.T) {
	labtest.RequireKernel(t)
	conns := labtest.Rounds(25, 5)
	labtest.Each(t, func(t *testing.T, device string) {
		most, cqs := 832<<10, 0
		if labtest.PinsQueues(t, device) { // registered as well, see shardSize
			most, cqs = most+(20<<10), 5<<18
		}
		before, resident := pinnedBytes(t), rss(t)
		server, client := run(t, rmsg.Options{}), run(t, rmsg.Options{})
		ln := listen(t, server, device)
		pairs := make([][2]*rmsg.Conn, conns)
		for i := range pairs {
			pairs[i][0] = labtest.Must((&rmsg.Dialer{Loop: client}).Connect(ln.Addr().String()))(t)
			pairs[i][1] = labtest.Must(ln.Accept(within(t)))(t)
			for _, s := range pairs[i] {
				if err := s.Wait(within(t)); err != nil {
					t.Fatal(err)
				}
			}
		}
		check := func(when string, each, loops int) {
			t.Helper()
			limit, got := 2*conns*each+2*(loops+cqs), 0
			// Send returns before the peer has read a message, and Recv
			// before that is acknowledged.
			labtest.Until(t, when+": the release of memory", func() bool {
				got = pinnedBytes(t) - before
				return got <= limit
			})
			t.Logf("%s: %d KiB of each of %d connections registered, %d KiB resident", when, got>>10/(2*conns), 2*conns, (rss(t)-resident)>>10/(2*conns))
			if got < 2*conns*(128<<10) {
				t.Errorf("%s: only %d bytes are registered", when, got)
			}
			for _, p := range pairs {
				for _, s := range p {
					if st := s.Stats(); loops == 0 && st.Memory > each {
						t.Errorf("%s: a connection says that it has %d bytes", when, st.Memory)
					}
				}
			}
		}
		// each sends n messages of a size in both directions on all connections.
		each := func(n, size int) {
			t.Helper()
			var all sync.WaitGroup
			for _, p := range pairs {
				for i := range p {
					all.Go(func() {
						message := make([]byte, size)
						for range n {
							if err := p[i].Send(within(t), message); err != nil {
								t.Error(err)
								return
							}
						}
					})
					all.Go(func() {
						for range n {
							b, err := p[1-i].Recv(within(t))
							if err != nil {
								t.Error(err)
								return
							}
							b.Free()
						}
					})
				}
			}
			all.Wait()
		}
		check("idle", most, 0)
		each(labtest.Rounds(200, 20), 100)
		check("after small messages", most, 0)
		each(labtest.Rounds(20, 5), 8<<10)
		check("after messages of 8 KiB", most, 0)
		each(3, 200<<10)
		check("after messages of 200 KiB", most, 4<<20)

		// A message of the largest size, held on both sides.
		const huge = 16 << 20
		b := labtest.Must(pairs[0][0].Alloc(huge))(t)
		if err := pairs[0][0].Post(b); err != nil {
			t.Fatal(err)
		}
		got := labtest.Must(pairs[0][1].Recv(within(t)))(t)
		if n := pinnedBytes(t) - before; n < 2*huge || n > 2*conns*most+2*(4<<20+cqs)+2*huge*9/8 {
			t.Errorf("%d bytes are registered with a message of %d on both sides", n, huge)
		}
		t.Logf("with a message of 16 MiB: %d MiB registered", (pinnedBytes(t)-before)>>20)
		got.Free()
		labtest.Until(t, "the message to be sent", func() bool { return b.Status() != rmsg.Queued })
		b.Free()
		check("after a message of 16 MiB", most, 4<<20)
		labtest.Until(t, "the caches to be empty", func() bool { return client.Stats().Cached+server.Stats().Cached == 0 })
		check("a moment later", most, 0)
	})
}

// rss returns the resident memory of this process in bytes.
func rss(t testing.TB) int {
	t.Helper()
	text := labtest.Must(os.ReadFile("/proc/self/status"))(t)
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	var kib int
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
