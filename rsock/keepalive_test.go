//go:build linux

package rsock

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestKeepAlive tests that both ends send keepalives, which, on or off, do not affect the data.
func TestKeepAlive(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		l := labtest.Must((&ListenConfig{Options: Options{KeepAlive: 2 * time.Millisecond}}).Listen(t.Context(), "rdma", labtest.AddrOf(device)+":0"))(t)
		defer l.Close()
		d := Dialer{Options: Options{KeepAlive: 3 * time.Millisecond}}
		a := labtest.Must(d.Dial("rdma", l.Addr().String()))(t).(*Conn)
		defer a.Close()
		b := labtest.Must(l.Accept())(t).(*Conn)
		defer b.Close()
		for from, to := range map[*Conn]*Conn{a: b, b: a} {
			labtest.Must(from.Write([]byte{1}))(t)
			labtest.Must(to.Read(make([]byte, 1)))(t)
			labtest.Until(t, "a keepalive after the byte", func() bool {
				labtest.Check(t, from.enter(nil))
				defer from.leave(nil)
				return from.control.pinged == 1
			})
		}
		if err := b.SetKeepAlive(false); err != nil {
			t.Error(err)
		}
		go a.Write([]byte("still there"))
		got := make([]byte, 11)
		b.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.ReadFull(b, got); err != nil || string(got) != "still there" {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// TestKeepAliveDeadPeer tests that the silent failure of a peer is noticed while nothing
// is written to it. On iWARP the peer's kernel would end the connection.
func TestKeepAliveDeadPeer(t *testing.T) {
	labtest.Require(t)
	l := labtest.Must(Listen("rdma", labtest.Addr+":0"))(t)
	defer l.Close()
	peer := dialHostile(t, labtest.RoCE, l.Addr().String(), validHello)
	c := labtest.Must(l.Accept())(t).(*Conn)
	defer c.Close()
	peer.sendMessages(opData | 1)
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	labtest.Until(t, "the acknowledgements of c's own messages", func() bool { s := c.Stats(); return s.Unsent == 0 && s.SendQueued == 0 })
	if err := peer.QP.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState); err != nil {
		t.Fatal(err)
	}
	labtest.Check(t, c.SetKeepAlivePeriod(10*time.Millisecond), c.SetKeepAlive(false),
		c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: -1}))
	if c.control.idle != 10*time.Millisecond {
		t.Errorf("the interval is %v", c.control.idle)
	}
	c.SetReadDeadline(time.Now().Add(50 * time.Second))
	_, err := c.Read(make([]byte, 1))
	var ne net.Error
	if !errors.Is(err, syscall.ETIMEDOUT) || !errors.Is(err, verbs.WCRetryExcErr) || !errors.As(err, &ne) || !ne.Timeout() {
		t.Errorf("%v", err)
	}
}
