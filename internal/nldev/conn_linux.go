package nldev

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
)

func do(cmd int, attrs Attrs) (answer Attrs, err error) {
	err = exchange(cmd, unix.NLM_F_ACK, attrs, func(a Attrs) error {
		answer = slices.Clone(a)
		return nil
	})
	return answer, err
}

func dump(cmd int, attrs Attrs, each func(Attrs) error) error {
	return exchange(cmd, unix.NLM_F_DUMP, attrs, each)
}

func exchange(cmd, flags int, attrs Attrs, each func(Attrs) error) error {
	c, err := open(unix.NETLINK_RDMA, 0)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.send(cmd, flags, attrs); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	for {
		n, err := receive(c.fd, c.buf)
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		if done, err := parse(c.buf[:n], each); done || err != nil {
			return err
		}
	}
}

// conn is a netlink socket. It belongs to the network namespace of the thread that opens it.
type conn struct {
	fd  int
	buf []byte
}

// open opens a socket of a netlink family that also receives the messages to groups, a bit mask.
func open(family int, groups uint32) (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
	if err == unix.EPROTONOSUPPORT || err == unix.EAFNOSUPPORT { // ib_core is not loaded
		return nil, fmt.Errorf("%w: %w", verbs.ErrNoRDMA, os.NewSyscallError("socket", err))
	}
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// The kernel then explains its refusals.
	unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return &conn{fd, make([]byte, 1<<15)}, nil // more than the kernel puts into one datagram
}

func (c *conn) Close() error { return unix.Close(c.fd) }

func (c *conn) send(cmd, flags int, attrs Attrs) error {
	b := make([]byte, unix.SizeofNlMsghdr, unix.SizeofNlMsghdr+len(attrs))
	binary.NativeEndian.PutUint32(b, uint32(unix.SizeofNlMsghdr+len(attrs)))
	binary.NativeEndian.PutUint16(b[4:], uint16(abi.RDMA_NL_NLDEV<<10|cmd)) // RDMA_NL_GET_TYPE
	binary.NativeEndian.PutUint16(b[6:], uint16(unix.NLM_F_REQUEST|flags))
	return unix.Sendto(c.fd, append(b, attrs...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

// receive receives the next datagram of the kernel, whose port is 0. Programs may send to the
// socket's port as well: with CAP_NET_ADMIN, or, in some families, without.
func receive(fd int, b []byte) (int, error) {
	for {
		n, from, err := unix.Recvfrom(fd, b, 0)
		if sender, ok := from.(*unix.SockaddrNetlink); err != nil && err != unix.EINTR || ok && sender.Pid == 0 {
			return n, err
		}
	}
}

// parse calls each with the parts of one datagram, and reports whether it is the last.
func parse(b []byte, each func(Attrs) error) (done bool, err error) {
	messages, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return false, err
	}
	for _, m := range messages {
		switch m.Header.Type {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR:
			return true, ack(m)
		}
		if err := each(m.Data); err != nil {
			return true, err
		}
	}
	return false, nil
}

// ack returns the error of the message that ends an answer.
func ack(m syscall.NetlinkMessage) error {
	if len(m.Data) < 4 {
		if m.Header.Type == unix.NLMSG_DONE {
			return nil
		}
		return unix.EBADMSG
	}
	errno := unix.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
	if errno == 0 {
		return nil
	}
	if m.Header.Flags&unix.NLM_F_ACK_TLVS == 0 {
		return errno
	}
	rest := m.Data[4:]
	if m.Header.Type == unix.NLMSG_ERROR { // the request follows, or its header
		if len(rest) < unix.SizeofNlMsghdr {
			return errno
		}
		skip := unix.SizeofNlMsghdr
		if m.Header.Flags&unix.NLM_F_CAPPED == 0 {
			skip = max(skip, int(binary.NativeEndian.Uint32(rest)))
		}
		rest = rest[min(align(skip), len(rest)):]
	}
	if msg := Attrs(rest).Map()[unix.NLMSGERR_ATTR_MSG]; msg != nil {
		return fmt.Errorf("%w: %s", errno, msg)
	}
	return errno
}

// notifiers are the groups of messages that report changes to devices and ports.
var notifiers = []struct {
	family  int
	groups  uint32
	matches string // a part of the messages that count
}{
	// Devices, since Linux 6.12.
	{unix.NETLINK_RDMA, 1 << (abi.RDMA_NL_GROUP_NOTIFY - 1), ""},
	// Devices, in the initial network namespace.
	{unix.NETLINK_KOBJECT_UEVENT, 1, "SUBSYSTEM=infiniband"},
	// Network interfaces, with which ports of RoCE and iWARP go up and down.
	{unix.NETLINK_ROUTE, unix.RTMGRP_LINK, ""},
}

// Notify calls changed, from several goroutines until ctx is done, when the kernel reports that devices
// or ports may have changed, or that it has lost reports; not if the kernel offers none. It reports
// all changes from when it returns on, in the network namespace of the calling thread. States of
// InfiniBand's ports are not reported.
func Notify(ctx context.Context, changed func()) {
	for _, n := range notifiers {
		c, err := open(n.family, n.groups)
		if err != nil {
			continue
		}
		go c.listen(ctx, []byte(n.matches), changed)
	}
}

// listen calls changed for every datagram that contains matches, and closes the socket.
func (c *conn) listen(ctx context.Context, matches []byte, changed func()) {
	if err := unix.SetNonblock(c.fd, true); err != nil {
		c.Close()
		return
	}
	f := os.NewFile(uintptr(c.fd), "netlink") // read through the netpoller
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	defer context.AfterFunc(ctx, func() { f.SetReadDeadline(time.Unix(1, 0)) })()
	for {
		var n int
		var err error
		ended := raw.Read(func(fd uintptr) bool {
			n, err = receive(int(fd), c.buf)
			return err != unix.EAGAIN
		})
		if ended != nil || err != nil && !errors.Is(err, unix.ENOBUFS) {
			return
		}
		if err != nil || bytes.Contains(c.buf[:n], matches) {
			changed()
		}
	}
}
