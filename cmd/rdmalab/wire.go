package main

import (
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// wires are the wires between two machines, by the name of the link at both ends.
var wires = []string{rxeWire, siwWire, controlWire}

const (
	rxeWire     = "w0"
	siwWire     = "w1"
	controlWire = "c0"
)

// mac returns the MAC address of a machine's card on a wire.
func mac(wire, host int) string { return fmt.Sprintf("52:54:00:09:%02x:%02x", wire, host) }

// network holds the wires between two machines. Their cards are datagram sockets to
// this program, which stay open when a machine ends.
type network struct {
	cards [][2]*card // by wire, and host-1
	done  sync.WaitGroup
}

// card is a network card that QEMU provides to its machine.
type card struct {
	ours   *net.UnixConn
	theirs *os.File
	up     atomic.Bool // the machine runs
}

func newNetwork() (*network, error) {
	n := &network{}
	for range wires {
		var ends [2]*card
		for i := range ends {
			c, err := newCard()
			if err != nil {
				n.close()
				return nil, err
			}
			ends[i] = c
		}
		n.cards = append(n.cards, ends)
		for i := range ends {
			n.done.Go(func() { carry(ends[i], ends[1-i]) })
		}
	}
	return n, nil
}

func newCard() (*card, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours := os.NewFile(uintptr(fds[0]), "card")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		unix.Close(fds[1])
		return nil, err
	}
	return &card{ours: conn.(*net.UnixConn), theirs: os.NewFile(uintptr(fds[1]), "card of QEMU")}, nil
}

func (n *network) close() {
	for _, ends := range n.cards {
		for _, c := range ends {
			c.ours.Close()
			c.theirs.Close()
		}
	}
	n.done.Wait()
}

// plug returns the sockets that a host's machine inherits, one for each wire, after
// discarding frames for the previous machine. Call unplug when the machine ends.
func (n *network) plug(host int) ([]*os.File, error) {
	var files []*os.File
	for _, ends := range n.cards {
		c := ends[host-1]
		for buf := make([]byte, 1); ; {
			if _, _, err := unix.Recvfrom(int(c.theirs.Fd()), buf, unix.MSG_DONTWAIT); err != nil {
				break
			}
		}
		fd, err := unix.FcntlInt(c.theirs.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			return nil, os.NewSyscallError("fcntl", err)
		}
		files = append(files, os.NewFile(uintptr(fd), c.theirs.Name()))
		c.up.Store(true)
	}
	return files, nil
}

func (n *network) unplug(host int) {
	for _, ends := range n.cards {
		ends[host-1].up.Store(false)
	}
}

// stall is how long a wire waits for a machine that receives nothing. The sending
// machine would report a fault of its card after some seconds.
const stall = 2 * time.Second

// carry forwards frames from one card to the other. They are lost while the other
// machine is down or does not receive, as during its boot.
func carry(from, to *card) {
	raw, err := to.ours.SyscallConn()
	if err != nil {
		return
	}
	stalled := false
	for buf := make([]byte, 64<<10); ; {
		n, err := from.ours.Read(buf)
		if err != nil {
			return
		}
		if !to.up.Load() {
			continue
		}
		to.ours.SetWriteDeadline(time.Now().Add(stall))
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
