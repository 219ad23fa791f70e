package harness

import (
	"bytes"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
)

// tap records the frames that one end of a wire sends, and sends them again.
type tap struct {
	t      testing.TB
	fd     int
	to     unix.SockaddrLinklayer
	frames [][]byte
	stop   func()
}

// ethPAll is ETH_P_ALL in network byte order.
const ethPAll = unix.ETH_P_ALL << 8

func newTap(t testing.TB, end string) *tap {
	t.Helper()
	dev := labtest.Must(net.InterfaceByName(end))(t)
	p := &tap{t: t, to: unix.SockaddrLinklayer{Protocol: ethPAll, Ifindex: dev.Index}}
	p.fd = labtest.Must(unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, ethPAll))(t)
	brief := unix.NsecToTimeval((20 * time.Millisecond).Nanoseconds())
	err := errors.Join(unix.Bind(p.fd, &p.to), unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
		unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &brief))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { p.record(done) })
	p.stop = sync.OnceFunc(func() { close(done); wg.Wait() })
	return p
}

func (p *tap) record(done <-chan struct{}) {
	b := make([]byte, 1<<16)
	for {
		select {
		case <-done:
			return
		default:
		}
		n, from, err := unix.Recvfrom(p.fd, b, 0)
		switch {
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
		case err != nil:
			p.t.Error(err)
			return
		case from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING:
			p.frames = append(p.frames, bytes.Clone(b[:n]))
		}
	}
}

func (p *tap) close() { p.stop(); unix.Close(p.fd) }

// handshakes returns how many of the frames begin a connection.
func (p *tap) handshakes(device string) (n int) {
	const udp = 14 + 20 // Ethernet and IP before it
	for _, f := range p.frames {
		switch {
		case device == labtest.SIW && bytes.Contains(f, []byte("MPA ID Req Frame")):
			n++
		case device == labtest.RXE && len(f) > udp+8+12 && f[udp+8] == 100 && f[udp+8+7] == 1: // UD SEND to QP 1
			n++
		}
	}
	return n
}

// replay sends all frames again, as fast as possible.
func (p *tap) replay() {
	p.t.Helper()
	for _, f := range p.frames {
		if err := unix.Sendto(p.fd, f, 0, &p.to); err != nil && !errors.Is(err, unix.ENOBUFS) {
			p.t.Error(err)
			return
		}
	}
}

// TestReplay records all frames on the wire and sends them again, as an attacker could:
// handshakes, data and ends of connections that have ended, and of one that has not. If rxe
// receives an acknowledgement in the middle of a READ it ends the connection, and completes
// the READ with success, whose data must not be used. Kernels log warnings about some frames.
func TestReplay(t *testing.T) {
	runFault(t, fault{
		title: "all that went over the wire is sent again, three times",
		quick: "rconn", long: true,
		wired: true,
		run: func(e *env) {
			taps := []*tap{newTap(e, "wa"), newTap(e, "wb")}
			for _, p := range taps {
				defer p.close()
			}
			c, l := e.startLoad()
			e.reconnect(c)
			l.roundMu.Lock()
			for _, p := range taps {
				p.stop()
			}
			l.roundMu.Unlock()
			l.takeLongest()
			e.Logf("%d and %d frames", len(taps[0].frames), len(taps[1].frames))
			if n := taps[0].handshakes(e.device); n < 2 {
				e.Errorf("%d frames that begin connections", n)
			}
			start := time.Now()
			for range 3 {
				for _, p := range taps {
					p.replay()
				}
				l.waitRounds(1)
			}
			if err := l.waitRounds(5); e.device == labtest.SIW || err == nil {
				e.expectContinues(c, l, 0)
				return
			}
			broken := []error{verbs.ErrDisconnected, verbs.WCFlushErr}
			saw := e.expect(wantErrors{"cm": broken, "rconn": broken, "rmsg": broken, "rsock": {unix.ECONNRESET}}, l.err)
			e.close(l.s)
			e.finish(c, saw, l.endTime.Sub(start))
		},
	})
}
