//go:build linux

package cm

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/mmap"
)

// FuzzSockaddr decodes and encodes addresses: a valid one means the same to the kernel
// afterwards.
func FuzzSockaddr(f *testing.F) {
	for _, a := range []string{"10.9.0.1:7471", "[fd00:9::1]:1", "[fe80::1%1]:65535", "[::ffff:10.9.0.1]:0"} {
		s, _, err := sockaddr(netip.MustParseAddrPort(a))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(mmap.Bytes(&s)[:unix.SizeofSockaddrInet6])
	}
	f.Add([]byte{unix.AF_IB, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		var s abi.KernelSockaddrStorage
		copy(mmap.Bytes(&s), b)
		ap := addrPort(&s)
		again, size, err := sockaddr(ap)
		if !ap.IsValid() {
			if err == nil || *s.SsFamily() == unix.AF_INET || *s.SsFamily() == unix.AF_INET6 {
				t.Fatalf("%x is %v, %v", b, ap, err)
			}
			return
		}
		if err != nil || *again.SsFamily() != *s.SsFamily() || addrPort(&again) != ap {
			t.Fatalf("%x is %v, which becomes %x, %v", b, ap, mmap.Bytes(&again)[:size], err)
		}
		// Port and address are at the same offsets.
		old, new := mmap.Bytes(&s), mmap.Bytes(&again)
		at := old[2:8]
		if size == unix.SizeofSockaddrInet6 {
			copy(new[4:8], old[4:8]) // the flow label, which netip.AddrPort does not have
			at = old[2:24]
		}
		if !bytes.Equal(new[2:][:len(at)], at) {
			t.Fatalf("%x becomes %x", old[:size], new[:size])
		}
	})
}

// FuzzDeliver delivers arbitrary events: an event goes to its ID, its private data is
// what was sent, it has an error if it means failure, and a new connection is in an
// event or closed.
func FuzzDeliver(f *testing.F) {
	event := func(uid uint64, typ EventType, status int32, n uint8, data string) []byte {
		e := abi.RdmaUcmEventResp{Uid: uid, Event: uint32(typ), Status: uint32(status)}
		e.Param.Conn().PrivateDataLen = n
		copy(e.Param.Conn().PrivateData[:], data)
		return mmap.Bytes(&e)
	}
	f.Add(event(1, ConnectRequest, 0, 4, "data"), uint16(PortSpaceTCP), true)
	f.Add(event(2, ConnectRequest, 0, 255, ""), uint16(PortSpaceUDP), true)
	f.Add(event(1, Established, 0, 56, "x"), uint16(PortSpaceUDP), false)
	f.Add(event(1, Rejected, 28, 148, "no"), uint16(PortSpaceTCP), false)
	f.Add(event(1, Unreachable, -110, 0, ""), uint16(PortSpaceIB), false)
	f.Add(event(1, ConnectRequest, -1<<31, 3, "arg"), uint16(PortSpaceTCP), false)
	f.Fuzz(func(t *testing.T, b []byte, space uint16, open bool) {
		c := testManager(t)
		c.ids = map[uint64]*ID{}
		id := c.add(9, PortSpace(space), nil)
		id.uid = 1
		c.ids = map[uint64]*ID{1: id}
		if !open {
			id.events.end(id, verbs.ErrClosed)
		}
		var r abi.RdmaUcmEventResp
		copy(mmap.Bytes(&r), b)
		c.deliver(&r)

		mine := open && r.Uid == 1
		if mine != (len(id.events.events) == 1) {
			t.Fatalf("event for %d: %d came", r.Uid, len(id.events.events))
		}
		known := 1
		if mine {
			e := id.events.events[0]
			if e.NewID != nil {
				known = 2
				if e.NewID.handle != r.Id || e.NewID.space != id.space {
					t.Fatalf("%+v", e.NewID)
				}
			}
			checkEvent(t, &r, &e, id.space.datagram())
		}
		if len(c.ids) != known {
			t.Fatalf("%d IDs, want %d", len(c.ids), known)
		}
	})
}

// checkEvent compares an event with the kernel's structure.
func checkEvent(t *testing.T, r *abi.RdmaUcmEventResp, e *Event, datagram bool) {
	t.Helper()
	_ = e.Type.String()
	if (e.NewID != nil) != (e.Type == ConnectRequest) {
		t.Fatalf("%v with connection %v", e.Type, e.NewID)
	}
	data, n := r.Param.Conn().PrivateData[:], r.Param.Conn().PrivateDataLen
	if datagram {
		data, n = r.Param.Ud().PrivateData[:], r.Param.Ud().PrivateDataLen
	}
	if !bytes.Equal(e.PrivateData, data[:n]) {
		t.Fatalf("private data %x of %x, %d bytes", e.PrivateData, data, n)
	}
	err := e.Err()
	failed := false
	switch e.Type {
	case AddrError, RouteError, ConnectError, Unreachable, Rejected, Disconnected, DeviceRemoval, MulticastError:
		failed = true
	}
	if failed != (err != nil) || failed && err.Error() == "" {
		t.Fatalf("%v, status %d: %v", e.Type, e.Status, err)
	}
	if rejected, ok := errors.AsType[*RejectedError](err); ok != (e.Type == Rejected || e.Type == Unreachable && sidrReasons[e.Status] != 0) || ok && !bytes.Equal(rejected.PrivateData, e.PrivateData) {
		t.Fatalf("%v: %v", e.Type, err)
	}
}

// testManager returns a manager whose file accepts every command.
func testManager(t *testing.T) *manager {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(os.NewSyscallError("socketpair", err))
	}
	t.Cleanup(func() { unix.Close(fds[1]) })
	file, err := host.NewEventFile(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return &manager{file: file}
}
