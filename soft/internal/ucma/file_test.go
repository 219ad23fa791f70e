package ucma

import (
	"runtime"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"unsafe"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// TestBadCommands writes commands that the kernel refuses.
func TestBadCommands(t *testing.T) {
	two(t, func(t *testing.T, n *network, a, b *program) {
		header := func(cmd uint32, in, out uint16) []byte {
			return mmap.Bytes(&abi.RdmaUcmCmdHdr{Cmd: cmd, In: in, Out: out})
		}
		for _, test := range []struct {
			name string
			b    []byte
			want syscall.Errno
		}{
			{"nothing", nil, syscall.EINVAL},
			{"half a header", make([]byte, 4), syscall.EINVAL},
			{"unknown command", header(uint32(len(commands)), 0, 0), syscall.EINVAL},
			{"huge command", header(1<<31, 0, 0), syscall.EINVAL},
			{"more than was written", header(0, 1, 0), syscall.EINVAL},
			{"GET_OPTION", header(abi.RDMA_USER_CM_CMD_GET_OPTION, 0, 0), syscall.ENOSYS},
			{"QUERY_ROUTE", header(abi.RDMA_USER_CM_CMD_QUERY_ROUTE, 0, 0), syscall.ENOSYS},
			{"no room for an answer", header(abi.RDMA_USER_CM_CMD_CREATE_ID, 0, 3), syscall.ENOSPC},
			{"no room for an event", header(abi.RDMA_USER_CM_CMD_GET_EVENT, 0, 100), syscall.ENOSPC},
			{"no port space", header(abi.RDMA_USER_CM_CMD_CREATE_ID, 0, 4), syscall.EINVAL},
			{"short connect", header(abi.RDMA_USER_CM_CMD_CONNECT, 0, 0), syscall.ENOENT},
			{"short accept", header(abi.RDMA_USER_CM_CMD_ACCEPT, 0, 0), syscall.ENOENT},
			{"no events", header(abi.RDMA_USER_CM_CMD_GET_EVENT, 0, 336), syscall.EAGAIN},
		} {
			if _, errno := a.file.Write(test.b); errno != test.want {
				t.Errorf("%s: %v, want %v", test.name, errno, test.want)
			}
		}
		// No command takes an ID that does not exist, is of another file, or is not bound.
		foreign := newProgram(t, a.m).newID(tcp)
		unbound := a.newID(tcp)
		for cmd := range commands {
			id := map[int]int{
				abi.RDMA_USER_CM_CMD_RESOLVE_ROUTE: 0,
				abi.RDMA_USER_CM_CMD_CONNECT:       272, abi.RDMA_USER_CM_CMD_LISTEN: 0, abi.RDMA_USER_CM_CMD_ACCEPT: 280,
				abi.RDMA_USER_CM_CMD_REJECT: 0, abi.RDMA_USER_CM_CMD_DISCONNECT: 0, abi.RDMA_USER_CM_CMD_INIT_QP_ATTR: 8,
				abi.RDMA_USER_CM_CMD_SET_OPTION: 8, abi.RDMA_USER_CM_CMD_NOTIFY: 0, abi.RDMA_USER_CM_CMD_QUERY: 8, abi.RDMA_USER_CM_CMD_DESTROY_ID: 8,
			}
			at, ok := id[cmd]
			if !ok {
				continue
			}
			req := make([]byte, 312)
			if cmd == abi.RDMA_USER_CM_CMD_CONNECT {
				req[271] = 1 // valid
			}
			for num, want := range map[uint32]syscall.Errno{1000: syscall.ENOENT, foreign.num: syscall.EINVAL} {
				copy(req[at:], mmap.Bytes(&num))
				isErrno(t, "command", a.write(uint32(cmd), req, 400), want)
			}
		}
		isErrno(t, "connect", unbound.connect(1, ""), syscall.EINVAL)
		isErrno(t, "accept", unbound.accept(1, ""), syscall.EINVAL)
		isErrno(t, "disconnect", unbound.disconnect(), syscall.EINVAL)
		isErrno(t, "reject", unbound.reject(0, ""), syscall.EINVAL)
		a.must(unbound.bind("10.0.0.1:0"))
		isErrno(t, "connect without a route", unbound.connect(1, ""), syscall.EINVAL)
		isErrno(t, "disconnect without a connection", unbound.disconnect(), syscall.EINVAL)
		isErrno(t, "reject without a request", unbound.reject(0, ""), syscall.EINVAL)
		if _, err := unbound.initQPAttr(7); err != syscall.EINVAL {
			t.Error(err)
		}
	})
}

// TestFault passes addresses without memory for the answers.
func TestFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(nil)
		p := newProgram(t, m)
		for _, addr := range []uint64{0, 1, 1<<64 - 2} {
			req := abi.RdmaUcmCreateId{Uid: 1, Ps: tcp, Response: addr}
			isErrno(t, "create", p.write(abi.RDMA_USER_CM_CMD_CREATE_ID, mmap.Bytes(&req), 4), syscall.EFAULT)
		}
		checkEmpty(t, m)
	})
}

// TestSizes checks the sizes of structures that are constants.
func TestSizes(t *testing.T) {
	for name, size := range map[string][2]uintptr{
		"query":  {unsafe.Offsetof(abi.RdmaUcmQueryAddrResp{}.IbdevIndex), addrWithoutIndex},
		"path":   {unsafe.Sizeof(abi.IbPathRecData{}), pathSize},
		"header": {unsafe.Sizeof(abi.RdmaUcmCmdHdr{}), headerSize},
	} {
		if size[0] != size[1] {
			t.Errorf("%s: %d, not %d", name, size[0], size[1])
		}
	}
}

// TestWithoutECE connects as older programs do.
func TestWithoutECE(t *testing.T) {
	two(t, func(t *testing.T, n *network, a, b *program) {
		l, dst := b.listener(tcp, "10.0.0.2:0")
		c := a.resolved(tcp, dst)
		req := abi.RdmaUcmConnect{Id: c.num, ConnParam: conn(1, ""), Ece: abi.RdmaUcmEce{VendorId: 1}}
		a.must(a.write(abi.RDMA_USER_CM_CMD_CONNECT, mmap.Bytes(&req)[:unsafe.Offsetof(req.Ece)], 0))
		if _, e := l.request(); e.Ece != (abi.RdmaUcmEce{}) {
			t.Errorf("%+v", e.Ece)
		}
	})
}

// FuzzWrite writes sequences of commands, with addresses of memory that is large enough, to a
// file of a machine with a device and a listener. Nothing panics, and in the end nothing is
// left.
func FuzzWrite(f *testing.F) {
	s, _ := storage("10.0.0.1:7471")
	add := func(parts ...[]byte) { f.Add(slices.Concat(parts...)) }
	cmd := func(n uint32, req []byte) []byte {
		b := make([]byte, fuzzCommand)
		copy(b, mmap.Bytes(&n))
		copy(b[4:], req)
		return b
	}
	bind := cmd(abi.RDMA_USER_CM_CMD_BIND, mmap.Bytes(&abi.RdmaUcmBind{Id: 1, AddrSize: 16, Addr: s}))
	resolve := cmd(abi.RDMA_USER_CM_CMD_RESOLVE_ADDR, mmap.Bytes(&abi.RdmaUcmResolveAddr{Id: 1, DstSize: 16, DstAddr: s}))
	route := cmd(abi.RDMA_USER_CM_CMD_RESOLVE_ROUTE, mmap.Bytes(&abi.RdmaUcmResolveRoute{Id: 1, TimeoutMs: 1}))
	connect := cmd(abi.RDMA_USER_CM_CMD_CONNECT, mmap.Bytes(&abi.RdmaUcmConnect{Id: 1, ConnParam: conn(1, "x")}))
	accept := cmd(abi.RDMA_USER_CM_CMD_ACCEPT, mmap.Bytes(&abi.RdmaUcmAccept{Uid: 2, Id: 2, ConnParam: conn(1, "x")}))
	event := cmd(abi.RDMA_USER_CM_CMD_GET_EVENT, nil)
	add(bind, resolve, route, connect, event, event, event, accept)
	add(cmd(abi.RDMA_USER_CM_CMD_JOIN_MCAST, mmap.Bytes(&abi.RdmaUcmJoinMcast{Id: 1, AddrSize: 16, Addr: s})), event)
	add(cmd(abi.RDMA_USER_CM_CMD_LISTEN, mmap.Bytes(&abi.RdmaUcmListen{Id: 1})), cmd(abi.RDMA_USER_CM_CMD_DESTROY_ID, []byte{8: 0}))
	for name := range uint32(4) {
		for _, size := range []uint32{1, 4} {
			add(cmd(abi.RDMA_USER_CM_CMD_SET_OPTION, mmap.Bytes(&abi.RdmaUcmSetOption{Id: 1, Level: abi.RDMA_OPTION_ID, Optname: name, Optlen: size})))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		synctest.Test(t, func(t *testing.T) {
			n, m := newNetwork(), New(nil)
			n.device(m, 1, "10.0.0.1")
			p := newProgram(t, m)
			p.listener(tcp, "10.0.0.1:7471")
			p.newID(tcp)
			var pin runtime.Pinner
			defer pin.Unpin()
			room := make([]byte, 4096)
			addr := mmap.Pin(&pin, room)
			for c := range slices.Chunk(data, fuzzCommand) {
				op := uint32(c[0])
				if len(c) < 12 || op == abi.RDMA_USER_CM_CMD_CREATE_ID && len(c) < 20 || op == abi.RDMA_USER_CM_CMD_SET_OPTION && len(c) < 28 {
					break // too short for the address or the size below
				}
				b := append(mmap.Bytes(&abi.RdmaUcmCmdHdr{Cmd: op, In: uint16(len(c) - 4), Out: uint16(len(room))}), c[4:]...)
				switch op {
				case abi.RDMA_USER_CM_CMD_CREATE_ID:
					copy(b[16:], mmap.Bytes(&addr))
				case abi.RDMA_USER_CM_CMD_DESTROY_ID, abi.RDMA_USER_CM_CMD_INIT_QP_ATTR, abi.RDMA_USER_CM_CMD_GET_EVENT,
					abi.RDMA_USER_CM_CMD_SET_OPTION, abi.RDMA_USER_CM_CMD_LEAVE_MCAST, abi.RDMA_USER_CM_CMD_MIGRATE_ID,
					abi.RDMA_USER_CM_CMD_QUERY, abi.RDMA_USER_CM_CMD_JOIN_MCAST:
					copy(b[8:], mmap.Bytes(&addr))
				}
				if op == abi.RDMA_USER_CM_CMD_SET_OPTION {
					b[8+8+4+4+4+2], b[8+8+4+4+4+3] = 0, 0 // what is within the room
					b[8+8+4+4+4+1] &= 0xf
				}
				p.file.Write(b)
				synctest.Wait()
			}
			p.file.Close()
			checkEmpty(t, m)
		})
	})
}

// fuzzCommand is the size of a command in the data of FuzzWrite.
const fuzzCommand = 4 + 312
