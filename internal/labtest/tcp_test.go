//go:build linux

package labtest

import (
	"net"
	"testing"
)

// TestTCPSockets finds a listener, and a connection with bytes that nobody has read.
func TestTCPSockets(t *testing.T) {
	l := Made(net.Listen("tcp4", "127.0.0.1:0"))(t)
	a := Made(net.Dial("tcp4", l.Addr().String()))(t)
	b := Made(l.Accept())(t)
	Must(a.Write(make([]byte, 123)))(t)
	find := func(addr net.Addr, state TCPState, unread int) bool {
		for _, s := range Must(TCPSockets())(t) {
			if s.Local.String() == addr.String() && s.State == state && s.Unread == unread {
				return true
			}
		}
		return false
	}
	Until(t, "the bytes", func() bool { return find(b.LocalAddr(), TCPEstablished, 123) })
	if !find(l.Addr(), TCPListen, 0) || !find(a.LocalAddr(), TCPEstablished, 0) {
		t.Errorf("sockets %+v", Must(TCPSockets())(t))
	}
	if list, err := parseTCP("names\n1: 00:11 0\n"); err == nil {
		t.Errorf("a line of another form is %+v", list)
	}
}
