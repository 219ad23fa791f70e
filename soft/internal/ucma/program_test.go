package ucma

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/roce"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/soft/internal/ibcm"
)

// network carries management datagrams between the devices of a test.
type network struct {
	mu      sync.Mutex
	devices map[netip.Addr]*device
	sent    []roce.CMMessage
	order   time.Duration
	drop    func(roce.CMMessage) bool
}

func newNetwork() *network { return &network{devices: map[netip.Addr]*device{}} }

// device is a device without queues.
type device struct {
	net   *network
	addrs []netip.Addr
	guid  verbs.GUID
	d     *Device
}

func (n *network) device(m *Manager, index byte, addrs ...string) *device {
	d := &device{net: n, guid: verbs.GUID{0: 2, 7: index}}
	for _, a := range addrs {
		d.addrs = append(d.addrs, netip.MustParseAddr(a))
	}
	d.d = m.AddDevice(d, int(index))
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range d.addrs {
		n.devices[a] = d
	}
	return d
}

func (*device) Acknowledge(uint32) {}

func (d *device) SendMAD(i int, dst netip.Addr, _ uint8, mad []byte) error {
	n, mad := d.net, slices.Clone(mad)
	_, msg, err := roce.DecodeCM(mad)
	if err != nil {
		panic(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sent = append(n.sent, msg)
	to := n.devices[dst]
	if to == nil || n.drop != nil && n.drop(msg) {
		return nil
	}
	n.order += time.Microsecond
	time.AfterFunc(time.Millisecond+n.order, func() {
		to.d.Receive(ibcm.Source{GIDIndex: to.GIDIndex(dst), Addr: d.addrs[i]}, mad)
	})
	return nil
}

func (d *device) GIDIndex(a netip.Addr) int { return slices.Index(d.addrs, a) }

func (d *device) GID(i int) (verbs.GID, bool) {
	if i < 0 || i >= len(d.addrs) {
		return verbs.GID{}, false
	}
	return d.addrs[i].As16(), true
}

func (d *device) GIDs() (all []verbs.GIDEntry) {
	for i, a := range d.addrs {
		all = append(all, verbs.GIDEntry{Port: 1, Index: i, GID: a.As16(), Type: verbs.GIDRoCEv2})
	}
	return all
}

func (d *device) Attr() verbs.DeviceAttr {
	return verbs.DeviceAttr{NodeGUID: d.guid, LocalCAAckDelay: 15}
}

func (d *device) PortAttr() verbs.PortAttr {
	return verbs.PortAttr{State: verbs.PortActive, ActiveMTU: 5}
}

// program is a program with an open file. It passes commands as package cm does.
type program struct {
	t    *testing.T
	m    *Manager
	file *File
	uid  uint64
}

func newProgram(t *testing.T, m *Manager) *program {
	p := &program{t: t, m: m, file: m.Open()}
	t.Cleanup(p.file.Close)
	return p
}

// run runs a command without an answer.
func run[Req any](p *program, cmd uint32, req *Req) error {
	return p.write(cmd, mmap.Bytes(req), 0)
}

// ask runs a command with an answer. response is the field of req for its address.
func ask[Resp, Req any](p *program, cmd uint32, req *Req, response *uint64) (r Resp, err error) {
	var pin runtime.Pinner
	defer pin.Unpin()
	answer := new(Resp)
	*response = mmap.Pin(&pin, mmap.Bytes(answer))
	err = p.write(cmd, mmap.Bytes(req), len(mmap.Bytes(answer)))
	return *answer, err
}

func (p *program) write(cmd uint32, req []byte, out int) error {
	b := append(mmap.Bytes(&abi.RdmaUcmCmdHdr{Cmd: cmd, In: uint16(len(req)), Out: uint16(out)}), req...)
	n, errno := p.file.Write(b)
	switch {
	case errno != 0:
		return errno
	case n != len(b):
		p.t.Errorf("%d bytes of %d were written", n, len(b))
	}
	return nil
}

// must fails the test if a command has failed.
func (p *program) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// testID is an ID of a program.
type testID struct {
	*program
	num   uint32
	uid   uint64
	space uint16
}

func (p *program) newID(space uint16) *testID {
	p.t.Helper()
	p.uid++
	req := abi.RdmaUcmCreateId{Uid: p.uid, Ps: space, QpType: uint8(verbs.RC)}
	r, err := ask[abi.RdmaUcmCreateIdResp](p, abi.RDMA_USER_CM_CMD_CREATE_ID, &req, &req.Response)
	p.must(err)
	return &testID{p, r.Id, p.uid, space}
}

func (i *testID) destroy() uint32 {
	i.t.Helper()
	req := abi.RdmaUcmDestroyId{Id: i.num}
	r, err := ask[abi.RdmaUcmDestroyIdResp](i.program, abi.RDMA_USER_CM_CMD_DESTROY_ID, &req, &req.Response)
	i.must(err)
	return r.EventsReported
}

func storage(addr string) (s abi.KernelSockaddrStorage, size uint16) {
	ap := netip.MustParseAddrPort(addr)
	a := sockaddr{family: afInet, addr: ap.Addr(), port: ap.Port()}
	if ap.Addr().Is6() {
		a.family = afInet6
	}
	a.encode(mmap.Bytes(&s))
	return s, uint16(a.size())
}

func (i *testID) bind(addr string) error {
	req := abi.RdmaUcmBind{Id: i.num}
	req.Addr, req.AddrSize = storage(addr)
	return run(i.program, abi.RDMA_USER_CM_CMD_BIND, &req)
}

func (i *testID) listen(backlog uint32) error {
	return run(i.program, abi.RDMA_USER_CM_CMD_LISTEN, &abi.RdmaUcmListen{Id: i.num, Backlog: backlog})
}

func (i *testID) resolve(src, dst string) error {
	req := abi.RdmaUcmResolveAddr{Id: i.num, TimeoutMs: 2000}
	if src != "" {
		req.SrcAddr, req.SrcSize = storage(src)
	}
	req.DstAddr, req.DstSize = storage(dst)
	return run(i.program, abi.RDMA_USER_CM_CMD_RESOLVE_ADDR, &req)
}

func (i *testID) resolveRoute() error {
	return run(i.program, abi.RDMA_USER_CM_CMD_RESOLVE_ROUTE, &abi.RdmaUcmResolveRoute{Id: i.num, TimeoutMs: 2000})
}

func conn(qp uint32, data string) abi.RdmaUcmConnParam {
	c := abi.RdmaUcmConnParam{QpNum: qp, ResponderResources: 2, InitiatorDepth: 3, RetryCount: 6, RnrRetryCount: 7, Valid: 1}
	c.PrivateDataLen = uint8(copy(c.PrivateData[:], data))
	return c
}

func (i *testID) connect(qp uint32, data string) error {
	return run(i.program, abi.RDMA_USER_CM_CMD_CONNECT, &abi.RdmaUcmConnect{Id: i.num, ConnParam: conn(qp, data), Ece: abi.RdmaUcmEce{VendorId: 0x15b3, AttrMod: 7}})
}

func (i *testID) accept(qp uint32, data string) error {
	i.program.uid++
	i.uid = i.program.uid
	return run(i.program, abi.RDMA_USER_CM_CMD_ACCEPT, &abi.RdmaUcmAccept{Uid: i.uid, Id: i.num, ConnParam: conn(qp, data)})
}

func (i *testID) establish() error {
	return run(i.program, abi.RDMA_USER_CM_CMD_ACCEPT, &abi.RdmaUcmAccept{Id: i.num})
}

func (i *testID) reject(reason uint8, data string) error {
	req := abi.RdmaUcmReject{Id: i.num, Reason: reason, PrivateDataLen: uint8(len(data))}
	copy(req.PrivateData[:], data)
	return run(i.program, abi.RDMA_USER_CM_CMD_REJECT, &req)
}

func (i *testID) disconnect() error {
	return run(i.program, abi.RDMA_USER_CM_CMD_DISCONNECT, &abi.RdmaUcmDisconnect{Id: i.num})
}

func (i *testID) initQPAttr(state verbs.QPState) (abi.IbUverbsQpAttr, error) {
	req := abi.RdmaUcmInitQpAttr{Id: i.num, QpState: uint32(state)}
	return ask[abi.IbUverbsQpAttr](i.program, abi.RDMA_USER_CM_CMD_INIT_QP_ATTR, &req, &req.Response)
}

func (i *testID) setOption(level, name uint32, value []byte) error {
	var pin runtime.Pinner
	defer pin.Unpin()
	return run(i.program, abi.RDMA_USER_CM_CMD_SET_OPTION, &abi.RdmaUcmSetOption{
		Id: i.num, Level: level, Optname: name, Optval: mmap.Pin(&pin, value), Optlen: uint32(len(value)),
	})
}

func one() []byte { return binary.NativeEndian.AppendUint32(nil, 1) }

func (i *testID) addrs() (src, dst netip.AddrPort, device uint32) {
	i.t.Helper()
	req := abi.RdmaUcmQuery{Id: i.num, Option: abi.RDMA_USER_CM_QUERY_ADDR}
	r, err := ask[abi.RdmaUcmQueryAddrResp](i.program, abi.RDMA_USER_CM_CMD_QUERY, &req, &req.Response)
	i.must(err)
	return addrPort(&r.SrcAddr), addrPort(&r.DstAddr), r.IbdevIndex
}

func addrPort(s *abi.KernelSockaddrStorage) netip.AddrPort {
	a, _ := decodeAddr(mmap.Bytes(s))
	return netip.AddrPortFrom(a.addr, a.port)
}

// next returns the next event, or EAGAIN.
func (p *program) next() (abi.RdmaUcmEventResp, error) {
	var req abi.RdmaUcmGetEvent
	return ask[abi.RdmaUcmEventResp](p, abi.RDMA_USER_CM_CMD_GET_EVENT, &req, &req.Response)
}

// await waits for the next event, which is for an ID.
func (i *testID) await(want eventType) *abi.RdmaUcmEventResp {
	i.t.Helper()
	for range 3000 {
		e, err := i.next()
		if err == syscall.EAGAIN {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		i.must(err)
		if eventType(e.Event) != want || e.Uid != i.uid {
			i.t.Fatalf("event %d with status %d for %d, want %d for %d", e.Event, int32(e.Status), e.Uid, want, i.uid)
		}
		return &e
	}
	i.t.Fatalf("event %d does not come", want)
	return nil
}

// expect is await for an event with a status.
func (i *testID) expect(want eventType, status int) *abi.RdmaUcmEventResp {
	i.t.Helper()
	e := i.await(want)
	if got := int(int32(e.Status)); got != status {
		i.t.Fatalf("event %d with status %d, want %d", want, got, status)
	}
	return e
}

// request returns the ID of the next connect request.
func (i *testID) request() (*testID, *abi.RdmaUcmEventResp) {
	i.t.Helper()
	e := i.expect(connectRequest, 0)
	return &testID{i.program, e.Id, 0, i.space}, e
}

// listener returns an ID that listens, and its address.
func (p *program) listener(space uint16, addr string) (*testID, string) {
	p.t.Helper()
	l := p.newID(space)
	p.must(l.bind(addr))
	p.must(l.listen(0))
	src, _, _ := l.addrs()
	return l, src.String()
}

// resolved returns an ID with a route to an address.
func (p *program) resolved(space uint16, dst string) *testID {
	p.t.Helper()
	i := p.newID(space)
	p.must(i.resolve("", dst))
	i.expect(addrResolved, 0)
	p.must(i.resolveRoute())
	i.expect(routeResolved, 0)
	return i
}

// idle checks that there are no events.
func (p *program) idle() {
	p.t.Helper()
	if e, err := p.next(); err != syscall.EAGAIN {
		p.t.Errorf("event %d for %d, %v", e.Event, e.Uid, err)
	}
}

// two runs a test with two machines, each with a device and a program.
func two(t *testing.T, f func(t *testing.T, n *network, a, b *program)) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		ma, mb := New(nil), New(nil)
		n.device(ma, 1, "10.0.0.1", "fd00::1")
		n.device(mb, 2, "10.0.0.2", "fd00::2")
		f(t, n, newProgram(t, ma), newProgram(t, mb))
	})
}

// isErrno reports an error that is not the one that a command should fail with.
func isErrno(t *testing.T, what string, err error, want syscall.Errno) {
	t.Helper()
	if want == 0 && err != nil || want != 0 && err != want {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}
