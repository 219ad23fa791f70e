package pingpong

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs"
)

// addressText was sent by ibv_rc_pingpong and is copied from a network trace.
const addressText = "0000:000011:636ab2:00000000000000000000ffff0a090001\x00"

var addressEnd = verbs.QPAddr{QPNum: 0x11, PSN: 0x636ab2, GID: verbs.GID{10: 0xff, 11: 0xff, 12: 10, 13: 9, 15: 1}}

// TestExchange runs both sides, with one QP and with several.
func TestExchange(t *testing.T) {
	for _, onWire := range []int{1, maxQP} {
		a, b := net.Pipe()
		type result struct {
			remote []verbs.QPAddr
			err    error
		}
		results := make(chan result, 2)
		run := func(conn net.Conn, qp uint32) {
			m := exchange{timeout: 5 * time.Second, onWire: onWire, connect: func([]verbs.QPAddr) error { return nil }}
			for i := range uint32(min(onWire, 3)) {
				m.local = append(m.local, verbs.QPAddr{QPNum: qp + i})
			}
			side := m.client
			if qp == 100 {
				side = m.server
			}
			remote, err := m.runOn(t.Context(), conn, side)
			if err == nil && (len(remote) != len(m.local) || remote[0].QPNum+qp != 300) {
				err = errors.New("these are not the peer's addresses")
			}
			results <- result{remote, err}
		}
		go run(a, 100)
		go run(b, 200)
		for range 2 {
			if r := <-results; r.err != nil {
				t.Errorf("%d addresses: %v, %v", onWire, r.remote, r.err)
			}
		}
	}
}

// TestBadPeers runs peers that break the protocol.
func TestBadPeers(t *testing.T) {
	for _, c := range []struct {
		name   string
		server bool
		peer   func(net.Conn)
		want   string
	}{
		{"client hangs up", true, func(c net.Conn) { c.Close() }, "closed the connection"},
		{"client hangs up in the address", true, sendThenClose(addressText[:20], ""), "closed the connection"},
		{"client says garbage", true, sendThenClose(strings.Repeat("x", len(addressText)), ""), `invalid address "xxx`},
		{"client has no QP", true, sendThenClose(strings.ReplaceAll(addressText, "11", "00"), ""), "uses 0 QPs"},
		{"client is never done", true, sendThenClose(addressText, ""), "closed the connection"},
		{"client is done otherwise", true, sendThenClose(addressText, "DONE\x00"), `unexpected data "DONE\x00"`},
		{"client is silent", true, func(net.Conn) {}, os.ErrDeadlineExceeded.Error()},
		{"server hangs up", false, func(c net.Conn) { readAddress(c); c.Close() }, "closed the connection"},
		{"server is silent", false, readAddress, os.ErrDeadlineExceeded.Error()},
	} {
		t.Run(c.name, func(t *testing.T) {
			local, remote := net.Pipe()
			defer remote.Close()
			go c.peer(remote)
			m := testExchange()
			side := m.client
			if c.server {
				side = m.server
			}
			_, err := m.runOn(t.Context(), local, side)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, not %q", err, c.want)
			}
		})
	}
}

// sendThenClose returns a client that sends first and, if that is an address, receives one and sends
// then, and hangs up.
func sendThenClose(first, then string) func(net.Conn) {
	return func(c net.Conn) {
		io.WriteString(c, first)
		if first == addressText {
			readAddress(c)
			io.WriteString(c, then)
		}
		c.Close()
	}
}

func readAddress(c net.Conn) { io.ReadFull(c, make([]byte, len(addressText))) }

func testExchange() *exchange {
	return &exchange{
		timeout: 100 * time.Millisecond, onWire: 1, local: []verbs.QPAddr{addressEnd},
		connect: func([]verbs.QPAddr) error { return nil },
	}
}

func TestInterrupted(t *testing.T) {
	reason := errors.New("the reason")
	for name, run := range map[string]func(*exchange, context.Context) ([]verbs.QPAddr, error){
		"server alone": func(x *exchange, ctx context.Context) ([]verbs.QPAddr, error) { return x.run(ctx, "", 18515) },
		"with a silent peer": func(m *exchange, ctx context.Context) ([]verbs.QPAddr, error) {
			local, remote := net.Pipe()
			defer remote.Close()
			return m.runOn(ctx, local, m.server)
		},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(20*time.Millisecond, func() { cancel(reason) })
		m := testExchange()
		m.timeout = 0
		if _, err := run(m, ctx); !errors.Is(err, reason) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPattern checks that messages differ from each other, from themselves shifted, and from
// the C programs' first, except where the check of these requires a zero.
func TestPattern(t *testing.T) {
	const size = 3 * 65536
	message := func(n int) []byte {
		b := make([]byte, size)
		fillPattern(b, n)
		return b
	}
	first := message(0)
	for i := 0; i < size; i += 4096 {
		if first[i] != 0 {
			t.Errorf("byte %d is %#x", i, first[i])
		}
	}
	for n := 1; n < 256; n++ {
		if differs(message(n)[:2], 0) < 0 {
			t.Errorf("message %d starts like message 0", n)
		}
	}
	for _, shift := range []int{1, 40, 256, 1024, 4096, 65536} {
		if bytes.Equal(first[shift:shift+1024], first[:1024]) {
			t.Errorf("the message shifted by %d is the same", shift)
		}
	}
	for _, fill := range []byte{0, 0x7b, 0xa5} {
		if differs(bytes.Repeat([]byte{fill}, 2), 0) < 0 || differs([]byte{0, fill}, 0) < 0 {
			t.Errorf("a message of %#x is taken for message 0", fill)
		}
	}
}
