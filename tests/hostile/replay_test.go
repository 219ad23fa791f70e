package hostile

import (
	"bytes"
	"encoding/binary"
	"flag"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

var replays = flag.Int("replays", 8, "how often the bytes of a connection are sent again, on iWARP")

// relay forwards one TCP connection to a server. It returns its own address and a function
// that waits for the end of the connection and returns the bytes that were sent to the
// server.
func relay(t *testing.T, device, to string) (addr string, recorded func() []byte) {
	t.Helper()
	l := labtest.Made(net.Listen("tcp", labtest.AddrOf(device)+":0"))(t)
	var record bytes.Buffer
	var wg sync.WaitGroup
	wg.Go(func() {
		client, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer client.Close()
		server, err := net.Dial("tcp", to)
		if err != nil {
			t.Error(err)
			return
		}
		defer server.Close()
		wg.Go(func() {
			io.Copy(client, server)
			client.(*net.TCPConn).CloseWrite()
		})
		io.Copy(io.MultiWriter(server, &record), client)
		server.(*net.TCPConn).CloseWrite()
	})
	return l.Addr().String(), func() []byte { wg.Wait(); return record.Bytes() }
}

// TestReplay sends the bytes of a client again, all of them, a part, or with a byte changed,
// over the TCP below iWARP: a handshake that was once valid, and messages with keys and
// numbers of a connection that has ended. (Package harness has the corresponding test for
// RoCE.)
func TestReplay(t *testing.T) {
	labtest.EachClean(t, func(t *testing.T, device string) {
		if device != labtest.SIW {
			t.Skip("not on TCP")
		}
		for _, l := range layers {
			withServer(t, l, device, time.Second, func(t *testing.T, s *server, g *goodClient) {
				addr, recorded := relay(t, device, s.addr)
				labtest.Check(t, l.echoOnce(addr))
				said := recorded()
				// The request of the handshake, which ends with its length (RFC 5044,
				// 7.1), and private data: siw accepts no more before the reply.
				request := 20 + int(binary.BigEndian.Uint16(said[18:]))
				before := currentUsage(t, device)
				r := rand.New(rand.NewPCG(1, 2))
				answered := 0
				for i := range *replays {
					again := bytes.Clone(said)
					switch i % 4 {
					case 1:
						again = again[:r.IntN(len(again))]
					case 2, 3:
						again[r.IntN(len(again))] ^= 1 << r.IntN(8)
					}
					c := labtest.Must(net.Dial("tcp", s.addr))(t)
					c.SetDeadline(time.Now().Add(time.Second))
					begin := min(request, len(again))
					c.Write(again[:begin])
					if _, err := c.Read(make([]byte, 512)); err == nil {
						answered++
						c.Write(again[begin:])
						c.SetDeadline(time.Now().Add(100 * time.Millisecond))
						io.Copy(io.Discard, c)
					} else if i%4 == 0 {
						t.Errorf("no answer to the whole of it: %v", err)
					}
					c.Close()
					g.checkServed(t)
				}
				t.Logf("%d bytes: %d of %d times answered", len(said), answered, *replays)
				if err := <-dialDuringAttack(t, l, s); err != nil {
					t.Errorf("a good client that comes afterwards: %v", err)
				}
				before.checkGrowth(t, device, usage{heap: 8 << 20, rss: 64 << 20, mrs: 0})
			})
		}
	})
}
