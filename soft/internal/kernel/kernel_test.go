package kernel_test

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/soft/internal/kernel"
	"github.com/goverbs/verbs/verbstest"
)

// newDevice makes a device on a network of its own.
func newDevice(t testing.TB) *kernel.Device {
	t.Helper()
	e, err := engine.New(engine.Config{
		Name: "test", Network: verbstest.NewNetwork(verbstest.Options{}), Addrs: []netip.Addr{netip.MustParseAddr("10.9.0.1")},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return kernel.NewDevice(e)
}

// open opens a file of a device.
func open(t testing.TB, d *kernel.Device) sys.File {
	t.Helper()
	f, errno := d.Open()
	if errno != 0 {
		t.Fatal(errno)
	}
	fd, errno := host.Install(f, "test")
	if errno != 0 {
		t.Fatal(errno)
	}
	t.Cleanup(func() { host.Close(fd) })
	return sys.File{FD: fd, Driver: abi.RDMA_DRIVER_RXE}
}

// openContext opens a file of a device and makes its context.
func openContext(t testing.TB, d *kernel.Device) sys.File {
	t.Helper()
	f := open(t, d)
	check(t, f.Ioctl(getContext))
	return f
}

var getContext = sys.Call{Object: abi.UVERBS_OBJECT_DEVICE, Method: abi.UVERBS_METHOD_GET_CONTEXT}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// want compares an error with an error number.
func want(t testing.TB, what string, err, errno error) {
	t.Helper()
	if err != errno {
		t.Errorf("%s: %v, want %v", what, err, errno)
	}
}

const protoNoSupport = syscall.EPROTONOSUPPORT

// TestProbe refuses other drivers before anything else, and unknown methods.
func TestProbe(t *testing.T) {
	f := open(t, newDevice(t))
	unknown := sys.Call{Object: abi.UVERBS_OBJECT_DEVICE, Method: 0xfff}
	want(t, "unknown method", f.Ioctl(unknown), protoNoSupport)
	want(t, "unknown object", f.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_DM}), protoNoSupport)
	other := f
	other.Driver = abi.RDMA_DRIVER_SIW
	want(t, "another driver", other.Ioctl(unknown), syscall.EINVAL)
	want(t, "another request", nonZero(host.Ioctl(f.FD, 1, make([]byte, 24))), syscall.ENOTTY)
}

func nonZero(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

func allocPD(t testing.TB, f sys.File) uint32 {
	t.Helper()
	var resp abi.IbUverbsAllocPdResp
	check(t, f.Invoke(abi.IB_USER_VERBS_CMD_ALLOC_PD, mmap.Bytes(&abi.IbUverbsAllocPd{}), mmap.Bytes(&resp), nil, nil))
	return resp.PdHandle
}

func destroyPD(f sys.File, handle uint32) error {
	return f.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_PD, Method: abi.UVERBS_METHOD_PD_DESTROY, Attrs: []sys.Attr{
		sys.Handle(abi.UVERBS_ATTR_DESTROY_PD_HANDLE, handle),
	}})
}

// TestContext uses a file before it has a context, and makes the context twice.
func TestContext(t *testing.T) {
	f := open(t, newDevice(t))
	var resp abi.IbUverbsAllocPdResp
	err := f.Invoke(abi.IB_USER_VERBS_CMD_ALLOC_PD, mmap.Bytes(&abi.IbUverbsAllocPd{}), mmap.Bytes(&resp), nil, nil)
	want(t, "PD without a context", err, syscall.EINVAL)
	want(t, "context", f.Ioctl(getContext), nil)
	want(t, "second context", f.Ioctl(getContext), syscall.EINVAL)
	want(t, "query of the context", f.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_DEVICE, Method: abi.UVERBS_METHOD_QUERY_CONTEXT}), syscall.EOPNOTSUPP)
}

// TestAttributes passes attributes that are missing, unknown, too short, or given twice.
func TestAttributes(t *testing.T) {
	f := openContext(t, newDevice(t))
	query := func(attrs ...sys.Attr) error {
		return f.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_DEVICE, Method: abi.UVERBS_METHOD_QUERY_PORT, Attrs: attrs})
	}
	var resp abi.IbUverbsQueryPortRespEx
	port, out := sys.Const(abi.UVERBS_ATTR_QUERY_PORT_PORT_NUM, 1), sys.Out(abi.UVERBS_ATTR_QUERY_PORT_RESP, &resp)
	want(t, "good call", query(port, out), nil)
	if resp.LegacyResp.State != uint8(verbs.PortActive) || resp.LegacyResp.Flags&abi.IB_UVERBS_QPF_GRH_REQUIRED == 0 {
		t.Errorf("port %+v", resp.LegacyResp)
	}
	want(t, "no port", query(out), syscall.EINVAL)
	want(t, "port 2", query(sys.Const(abi.UVERBS_ATTR_QUERY_PORT_PORT_NUM, 2), out), syscall.EINVAL)
	want(t, "port twice", query(port, port, out), syscall.EINVAL)
	want(t, "short result", query(port, sys.OutBytes(abi.UVERBS_ATTR_QUERY_PORT_RESP, make([]byte, 16))), syscall.EINVAL)
	unknown := sys.Const(99, 1)
	want(t, "unknown attribute", query(port, out, unknown), protoNoSupport)
	want(t, "unknown optional attribute", query(port, out, unknown.Optional()), nil)
}

// TestGIDs queries the GID table and its entries.
func TestGIDs(t *testing.T) {
	f := openContext(t, newDevice(t))
	entry := func(index uint64) (abi.IbUverbsGidEntry, error) {
		var e abi.IbUverbsGidEntry
		return e, f.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_DEVICE, Method: abi.UVERBS_METHOD_QUERY_GID_ENTRY, Attrs: []sys.Attr{
			sys.Const(abi.UVERBS_ATTR_QUERY_GID_ENTRY_PORT, 1), sys.Const(abi.UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX, index),
			sys.Const(abi.UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS, 0), sys.Out(abi.UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, &e),
		}})
	}
	e, err := entry(0)
	if gid := verbs.GID(mmap.Bytes(&e.Gid)); err != nil || gid.Addr() != netip.MustParseAddr("10.9.0.1") || e.GidType != uint32(verbs.GIDRoCEv2) {
		t.Errorf("entry %+v, %v", e, err)
	}
	_, err = entry(1)
	want(t, "unused entry", err, syscall.Errno(61))
	_, err = entry(1 << 20)
	want(t, "entry outside of the table", err, syscall.EINVAL)

	table := func(room int) (n uint64, err error) {
		size := len(mmap.Bytes(&e))
		return n, f.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_DEVICE, Method: abi.UVERBS_METHOD_QUERY_GID_TABLE, Attrs: []sys.Attr{
			sys.Const(abi.UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE, uint64(size)), sys.Const(abi.UVERBS_ATTR_QUERY_GID_TABLE_FLAGS, 0),
			sys.OutBytes(abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, make([]byte, room)),
			sys.Out(abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, &n),
		}})
	}
	if n, err := table(10 * len(mmap.Bytes(&e))); n != 1 || err != nil {
		t.Errorf("%d entries, %v", n, err)
	}
	_, err = table(1)
	want(t, "table without room", err, syscall.EINVAL)
}

// TestHandles makes and destroys objects: handles are the lowest free ones, and name objects of
// one kind.
func TestHandles(t *testing.T) {
	f := openContext(t, newDevice(t))
	a, b := allocPD(t, f), allocPD(t, f)
	if a != 0 || b != 1 {
		t.Errorf("handles %d, %d", a, b)
	}
	want(t, "destroy", destroyPD(f, a), nil)
	want(t, "destroy again", destroyPD(f, a), syscall.ENOENT)
	want(t, "destroy as an MR", f.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_MR, Method: abi.UVERBS_METHOD_MR_DESTROY, Attrs: []sys.Attr{
		sys.Handle(abi.UVERBS_ATTR_DESTROY_MR_HANDLE, b),
	}}), syscall.EINVAL)
	if c := allocPD(t, f); c != a {
		t.Errorf("handle %d is not used again, but %d", a, c)
	}
}

// createCQ makes a CQ, with a completion channel unless it is negative.
func createCQ(f sys.File, entries uint32, channel int, extra ...sys.Attr) (handle uint32, resp abi.RxeCreateCqResp, err error) {
	var got, vector uint32
	id := uint64(0x1234567890)
	err = f.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_CQ, Method: abi.UVERBS_METHOD_CQ_CREATE, Attrs: append(extra,
		sys.New(abi.UVERBS_ATTR_CREATE_CQ_HANDLE, &handle), sys.In(abi.UVERBS_ATTR_CREATE_CQ_CQE, &entries),
		sys.In(abi.UVERBS_ATTR_CREATE_CQ_USER_HANDLE, &id), sys.In(abi.UVERBS_ATTR_CREATE_CQ_COMP_VECTOR, &vector),
		sys.FD(abi.UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL, channel).If(channel >= 0),
		sys.Out(abi.UVERBS_ATTR_CREATE_CQ_RESP_CQE, &got), sys.Out(abi.UVERBS_ATTR_UHW_OUT, &resp),
	)})
	return handle, resp, err
}

// TestMapping maps a queue: once, at its offset, and not beyond its end.
func TestMapping(t *testing.T) {
	f := openContext(t, newDevice(t))
	_, resp, err := createCQ(f, 10, -1)
	check(t, err)
	offset, size := int64(resp.Mi.Offset), int(resp.Mi.Size)
	if _, err := mmap.Map(f.FD, offset, size+1); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("mapped more than there is: %v", err)
	}
	if _, err := mmap.Map(f.FD, offset+4096*1000, size); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("mapped at another offset: %v", err)
	}
	r, err := mmap.Map(f.FD, offset, size)
	check(t, err)
	hdr := mmap.Slice[abi.RxeQueueBuf](r.Bytes(), 0, 1)[0]
	if hdr.IndexMask != 15 || 1<<hdr.Log2ElemSize < len(mmap.Bytes(&abi.IbUverbsWc{})) {
		t.Errorf("queue %+v", hdr)
	}
	if _, err := mmap.Map(f.FD, offset, size); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("mapped twice: %v", err)
	}
}

// TestCQ makes CQs with values that are refused.
func TestCQ(t *testing.T) {
	f := openContext(t, newDevice(t))
	for name, c := range map[string]struct {
		entries uint32
		channel int
		flags   uint64
		errno   error
	}{
		"no entries":       {0, -1, 0, syscall.EINVAL},
		"too many entries": {1 << 20, -1, 0, syscall.EINVAL},
		"negative entries": {1 << 31, -1, 0, syscall.EINVAL},
		"no channel":       {1, f.FD, 0, syscall.EBADF},
		"timestamps":       {1, -1, abi.IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION, syscall.EOPNOTSUPP},
		"unknown flag":     {1, -1, 1 << 20, syscall.EINVAL},
	} {
		_, _, err := createCQ(f, c.entries, c.channel, sys.Const(abi.UVERBS_ATTR_CREATE_CQ_FLAGS, c.flags))
		want(t, name, err, c.errno)
	}
	if h := allocPD(t, f); h != 0 {
		t.Errorf("a refused CQ has left handle %d", h)
	}
}

// createQP makes a QP of a PD and a CQ.
func createQP(f sys.File, typ uint64, pd, cq uint32) (handle uint32, err error) {
	c := abi.IbUverbsQpCap{MaxSendWr: 4, MaxRecvWr: 4, MaxSendSge: 1, MaxRecvSge: 1}
	var id uint64
	var num uint32
	var resp abi.RxeCreateQpResp
	return handle, f.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_QP, Method: abi.UVERBS_METHOD_QP_CREATE, Attrs: []sys.Attr{
		sys.New(abi.UVERBS_ATTR_CREATE_QP_HANDLE, &handle), sys.Handle(abi.UVERBS_ATTR_CREATE_QP_PD_HANDLE, pd),
		sys.Handle(abi.UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE, cq), sys.Handle(abi.UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, cq),
		sys.In(abi.UVERBS_ATTR_CREATE_QP_USER_HANDLE, &id), sys.In(abi.UVERBS_ATTR_CREATE_QP_CAP, &c),
		sys.Const(abi.UVERBS_ATTR_CREATE_QP_TYPE, typ),
		sys.Out(abi.UVERBS_ATTR_CREATE_QP_RESP_CAP, &c), sys.Out(abi.UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, &num),
		sys.Out(abi.UVERBS_ATTR_UHW_OUT, &resp),
	}})
}

func destroyQP(f sys.File, handle uint32) error {
	var resp abi.IbUverbsDestroyQpResp
	return f.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_QP, Method: abi.UVERBS_METHOD_QP_DESTROY, Attrs: []sys.Attr{
		sys.Handle(abi.UVERBS_ATTR_DESTROY_QP_HANDLE, handle), sys.Out(abi.UVERBS_ATTR_DESTROY_QP_RESP, &resp),
	}})
}

// TestInUse destroys objects that others use, and a QP that is in multicast groups.
func TestInUse(t *testing.T) {
	d := newDevice(t)
	f := openContext(t, d)
	pd := allocPD(t, f)
	cq, _, err := createCQ(f, 10, -1)
	check(t, err)
	qp, err := createQP(f, uint64(verbs.UD), pd, cq)
	check(t, err)
	want(t, "destroy the PD", destroyPD(f, pd), syscall.EBUSY)
	req := abi.IbUverbsAttachMcast{QpHandle: qp, Gid: [16]byte{0xff, 0x0e, 15: 1}}
	group := func(cmd uint32, mlid uint16) error {
		req.Mlid = mlid
		return f.Invoke(cmd, mmap.Bytes(&req), nil, nil, nil)
	}
	const attach, detach = abi.IB_USER_VERBS_CMD_ATTACH_MCAST, abi.IB_USER_VERBS_CMD_DETACH_MCAST
	want(t, "detach", group(detach, 0), syscall.EINVAL)
	for _, mlid := range []uint16{0, 0, 1} {
		want(t, "attach", group(attach, mlid), nil)
	}
	want(t, "destroy the QP", destroyQP(f, qp), syscall.EBUSY)
	for _, mlid := range []uint16{0, 1} {
		want(t, "detach", group(detach, mlid), nil)
	}
	want(t, "detach again", group(detach, 1), syscall.EINVAL)
	req.Gid[0] = 0
	want(t, "attach to an address that is no group", group(attach, 0), syscall.EINVAL)
	want(t, "destroy the QP", destroyQP(f, qp), nil)
	want(t, "destroy the PD", destroyPD(f, pd), nil)
	counts := d.Resources()
	if counts["cq"] != 1 || counts["qp"] != 0 || counts["pd"] != 0 || counts["ctx"] != 1 {
		t.Errorf("objects: %v", counts)
	}
}

// TestQPTypes makes QPs of types that rxe refuses.
func TestQPTypes(t *testing.T) {
	f := openContext(t, newDevice(t))
	pd := allocPD(t, f)
	cq, _, err := createCQ(f, 10, -1)
	check(t, err)
	for typ, errno := range map[uint64]error{
		uint64(verbs.RC): nil, uint64(verbs.UC): nil, abi.IB_UVERBS_QPT_RAW_PACKET: syscall.EOPNOTSUPP,
		abi.IB_UVERBS_QPT_DRIVER: syscall.EOPNOTSUPP, 77: syscall.EINVAL,
	} {
		_, err := createQP(f, typ, pd, cq)
		want(t, verbs.QPType(typ).String(), err, errno)
	}
	_, err = createQP(f, uint64(verbs.RC), pd, 99)
	want(t, "no CQ", err, syscall.ENOENT)
	_, err = createQP(f, uint64(verbs.RC), cq, cq)
	want(t, "a CQ as PD", err, syscall.EINVAL)
}

// TestClose closes a file with objects: they are destroyed.
func TestClose(t *testing.T) {
	d := newDevice(t)
	f := openContext(t, d)
	pd := allocPD(t, f)
	cq, _, err := createCQ(f, 10, -1)
	check(t, err)
	qp, err := createQP(f, uint64(verbs.UD), pd, cq)
	check(t, err)
	req := abi.IbUverbsAttachMcast{QpHandle: qp, Gid: [16]byte{0xff, 0x0e, 15: 1}}
	check(t, f.Invoke(abi.IB_USER_VERBS_CMD_ATTACH_MCAST, mmap.Bytes(&req), nil, nil, nil))
	host.Close(f.FD)
	for kind, n := range d.Resources() {
		if n != 0 {
			t.Errorf("%d %s are left", n, kind)
		}
	}
}
