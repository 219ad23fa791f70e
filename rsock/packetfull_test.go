//go:build linux

package rsock

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestPacketSocketFull has a network that sends nothing, so that the UDP socket is full: a write ends at
// its deadline, and neither it nor the answer to a peer keeps Close waiting.
func TestPacketSocketFull(t *testing.T) {
	labtest.RequireKernel(t)
	runtime.LockOSThread() // the thread ends with the test
	labtest.Check(t, unix.Unshare(unix.CLONE_NEWNET))
	labtest.Shell(t, "modprobe sch_tbf; ip link set lo up; tc qdisc add dev lo root tbf rate 8bit burst 8000 limit 10000000")
	defer labtest.Shell(t, "tc qdisc del dev lo root") // packets that wait there keep their socket, and that its namespace
	c, _ := newPacketConn(t, Options{})
	labtest.Check(t, c.SetWriteBuffer(4096))
	peer := netip.AddrPortFrom(c.local.Addr(), 9)
	_, err := c.MaxPayload(peer)
	labtest.Check(t, err)
	full := func() (err error) {
		for err == nil {
			_, err = c.WriteToAddrPort(make([]byte, 1000), peer)
		}
		return err
	}
	labtest.Check(t, c.SetWriteDeadline(time.Now().Add(20*time.Millisecond)))
	if err := full(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("write to a full socket: %v", err)
	}
	labtest.Check(t, c.SetWriteDeadline(time.Time{}))
	ended := make(chan error, 2)
	go func() { ended <- full() }()
	labtest.UntilBlocked(t, 1, "net.(*UDPConn).WriteToUDPAddrPort")
	go func() {
		c.receiveUDP(peer, appendUDPHeader(nil, peer.Addr(), udpData, 17))
		ended <- nil
	}()
	labtest.UntilBlocked(t, 1, "rsock.(*PacketConn).answer")
	labtest.Check(t, c.Close())
	for range 2 {
		if err := <-ended; err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	}
}
