package nldev

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestForeignSender sends to the socket's port from another socket, as programs can: the message is
// not one of the kernel.
func TestForeignSender(t *testing.T) {
	c, err := open(unix.NETLINK_USERSOCK, 0) // in which all may send to all
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	own, err := unix.Getsockname(c.fd)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(c.fd, true); err != nil {
		t.Fatal(err)
	}
	other, err := open(unix.NETLINK_USERSOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for range 3 {
		if err := unix.Sendto(other.fd, make([]byte, 64), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: own.(*unix.SockaddrNetlink).Pid}); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := receive(c.fd, c.buf); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("%d bytes of another program, %v", n, err)
	}
}
