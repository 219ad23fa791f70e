//go:build linux

// Package pcitest connects emulated cards to machines without a processor, as QEMU would.
package pcitest

import (
	"encoding/binary"
	"net"
	"os"
	"testing"

	"github.com/goverbs/verbs/lab/vfiouser"
	"golang.org/x/sys/unix"
)

// Card is an emulated card.
type Card interface {
	vfiouser.Device
	Close() error
}

// Attach makes a card and hands it size bytes of memory at address base, which it returns. The card ends with
// the test.
func Attach(t testing.TB, base uint64, size int, attach func(*vfiouser.Bus) (Card, error)) (mem []byte) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	must(err)
	file := os.NewFile(uintptr(fd), "guest")
	defer file.Close()
	must(file.Truncate(int64(size)))
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	must(err)
	mem, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(err)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(err)
	var conns [2]*net.UnixConn
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "vfio-user")
		c, err := net.FileConn(f)
		f.Close()
		must(err)
		conns[i] = c.(*net.UnixConn)
	}
	served, attached := make(chan error, 1), make(chan Card, 1)
	go func() {
		served <- vfiouser.Serve(conns[1], func(bus *vfiouser.Bus) (vfiouser.Device, error) {
			c, err := attach(bus)
			if err != nil {
				c = nil
			}
			attached <- c
			return c, err
		})
	}()
	card := <-attached
	if card == nil {
		t.Fatal(<-served)
	}
	t.Cleanup(func() {
		conns[0].Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := card.Close(); err != nil {
			t.Error(err)
		}
		unix.Munmap(mem)
	})
	le := binary.LittleEndian
	message := func(cmd uint16, body []byte, rights []byte) {
		head := make([]byte, 16, 16+len(body))
		le.PutUint16(head[2:], cmd)
		le.PutUint32(head[4:], uint32(16+len(body)))
		_, _, err := conns[0].WriteMsgUnix(append(head, body...), rights, nil)
		must(err)
		reply := make([]byte, 4096)
		if _, err := conns[0].Read(reply); err != nil || le.Uint32(reply[12:]) != 0 {
			t.Fatalf("message %d: error %v, errno %d", cmd, err, le.Uint32(reply[12:]))
		}
	}
	message(1, []byte{0, 0, 1, 0}, nil) // VERSION
	dma := make([]byte, 32)             // DMA_MAP
	le.PutUint32(dma, 32)
	le.PutUint32(dma[4:], 3)
	le.PutUint64(dma[16:], base)
	le.PutUint64(dma[24:], uint64(size))
	message(2, dma, unix.UnixRights(int(file.Fd())))
	return mem
}
