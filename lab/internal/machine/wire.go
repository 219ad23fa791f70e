//go:build linux

package machine

import (
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// network holds the wires between two machines. Their cards are datagram sockets to
// this program, which stay open when a machine ends.
type network struct {
	nics [][2]*nic // by wire, and number-1
	done sync.WaitGroup
}

// nic is a network card that QEMU provides to its machine.
type nic struct {
	conn *net.UnixConn
	file *os.File    // for QEMU
	up   atomic.Bool // the machine runs
}

func newNetwork(wires int) (*network, error) {
	n := &network{}
	for range wires {
		first, err := newNIC()
		if err != nil {
			n.close()
			return nil, err
		}
		second, err := newNIC()
		if err != nil {
			first.close()
			n.close()
			return nil, err
		}
		n.nics = append(n.nics, [2]*nic{first, second})
		n.done.Go(func() { forward(first, second) })
		n.done.Go(func() { forward(second, first) })
	}
	return n, nil
}

func newNIC() (*nic, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	file := os.NewFile(uintptr(fds[0]), "card")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		unix.Close(fds[1])
		return nil, err
	}
	return &nic{conn: conn.(*net.UnixConn), file: os.NewFile(uintptr(fds[1]), "card of QEMU")}, nil
}

func (n *network) close() {
	for _, cards := range n.nics {
		for _, c := range cards {
			c.close()
		}
	}
	n.done.Wait()
}

func (c *nic) close() {
	c.conn.Close()
	c.file.Close()
}

// attach returns the sockets that the machine with a number inherits, one for each wire, after
// discarding frames for the previous machine. Call detach when the machine ends.
func (n *network) attach(number int) ([]*os.File, error) {
	var files []*os.File
	for _, cards := range n.nics {
		c := cards[number-1]
		for buf := make([]byte, 1); ; {
			if _, _, err := unix.Recvfrom(int(c.file.Fd()), buf, unix.MSG_DONTWAIT); err != nil {
				break
			}
		}
		fd, err := unix.FcntlInt(c.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			return nil, os.NewSyscallError("fcntl", err)
		}
		files = append(files, os.NewFile(uintptr(fd), c.file.Name()))
		c.up.Store(true)
	}
	return files, nil
}

func (n *network) detach(number int) {
	for _, cards := range n.nics {
		cards[number-1].up.Store(false)
	}
}

// sendTimeout bounds the wait of a wire for a machine that receives nothing. After some seconds, the
// kernel of the sending machine would report a fault of its card.
const sendTimeout = 2 * time.Second

// forward forwards frames from one card to the other. They are lost while the other
// machine is down or does not receive, as during its boot.
func forward(from, to *nic) {
	raw, err := to.conn.SyscallConn()
	if err != nil {
		return
	}
	stalled := false
	for buf := make([]byte, 64<<10); ; {
		n, err := from.conn.Read(buf)
		if err != nil {
			return
		}
		if !to.up.Load() {
			continue
		}
		to.conn.SetWriteDeadline(time.Now().Add(sendTimeout))
		err = raw.Write(func(fd uintptr) bool {
			err := unix.Sendto(int(fd), buf[:n], unix.MSG_DONTWAIT, nil)
			full := err == unix.EAGAIN
			if !full || stalled {
				stalled = full
				return true
			}
			return false
		})
		stalled = stalled || err != nil
	}
}
