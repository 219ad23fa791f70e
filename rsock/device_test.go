//go:build linux

package rsock

import (
	"net"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestTOS checks that both sides send with the dialer's traffic class, by the queue pair and the
// device that they name.
func TestTOS(t *testing.T) {
	labtest.RequireBoth(t)
	l := labtest.Made(Listen("rdma", labtest.Addr+":0"))(t)
	const tos = 0x68
	a := labtest.Made((&Dialer{TOS: tos}).Dial("rdma", l.Addr().String()))(t)
	b := labtest.Made(l.Accept())(t)
	for _, c := range []net.Conn{a, b} {
		c := c.(*Conn)
		attr := labtest.Must(c.qp.Query())(t)
		if attr.AV.TrafficClass != tos || attr.DestQPNum == c.QPNum() || c.Device().Name != labtest.RoCE {
			t.Errorf("traffic class %#x, QP %d to %d on %s", attr.AV.TrafficClass, c.QPNum(), attr.DestQPNum, c.Device().Name)
		}
	}
	if attr := labtest.Must(a.(*Conn).qp.Query())(t); attr.DestQPNum != b.(*Conn).QPNum() {
		t.Errorf("the peer's QP is %d, and names itself %d", attr.DestQPNum, b.(*Conn).QPNum())
	}
}
