package kernel_test

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"syscall"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
	"github.com/goverbs/verbs/soft/internal/kernel"
	"github.com/goverbs/verbs/verbstest"
)

// header returns the header of a write command.
func header(cmd uint32, inWords, outWords uint16) []byte {
	return append([]byte(nil), mmap.Bytes(&abi.IbUverbsCmdHdr{Command: cmd, InWords: inWords, OutWords: outWords})...)
}

// TestWriteRefused writes commands that are malformed.
func TestWriteRefused(t *testing.T) {
	d := newDevice(t)
	f := openContext(t, d)
	write := func(b ...byte) error { return second(host.Write(f.FD, b)) }
	const notify = abi.IB_USER_VERBS_CMD_REQ_NOTIFY_CQ
	for name, c := range map[string]struct {
		b     []byte
		errno error
	}{
		"too short":           {[]byte{1}, syscall.EINVAL},
		"unknown flag":        {header(1<<30, 2, 0), syscall.EINVAL},
		"unknown command":     {header(200, 2, 0), syscall.EOPNOTSUPP},
		"unsupported command": {header(abi.IB_USER_VERBS_CMD_POLL_CQ, 2, 0), syscall.EOPNOTSUPP},
		"unsupported, extended": {header(abi.IB_USER_VERBS_EX_CMD_CREATE_FLOW|abi.IB_USER_VERBS_CMD_FLAG_EXTENDED, 2, 0),
			syscall.EOPNOTSUPP},
		"supported, extended": {header(abi.IB_USER_VERBS_EX_CMD_QUERY_DEVICE|abi.IB_USER_VERBS_CMD_FLAG_EXTENDED, 2, 0),
			syscall.EOPNOTSUPP},
		"wrong length":          {header(notify, 3, 0), syscall.EINVAL},
		"short request":         {header(notify, 2, 0), syscall.ENOSPC},
		"no such CQ":            {append(header(notify, 4, 0), make([]byte, 8)...), syscall.ENOENT},
		"more than the request": {append(header(notify, 5, 0), 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0), syscall.EOPNOTSUPP},
		"short response":        {append(header(abi.IB_USER_VERBS_CMD_ALLOC_PD, 4, 0), make([]byte, 8)...), syscall.ENOSPC},
		"response nowhere":      {append(header(abi.IB_USER_VERBS_CMD_ALLOC_PD, 4, 1), make([]byte, 8)...), syscall.EFAULT},
	} {
		want(t, name, write(c.b...), c.errno)
	}
	if n := d.Resources()["pd"]; n != 0 {
		t.Errorf("%d PDs are left whose handle was not returned", n)
	}
}

func second[T any](_ T, err error) error { return err }

// TestInvokeExtended queries the device by an extended command, with and without room for all of
// the response.
func TestInvokeExtended(t *testing.T) {
	f := openContext(t, newDevice(t))
	for _, size := range []int{len(mmap.Bytes(&abi.IbUverbsExQueryDeviceResp{})), 192} {
		out := make([]byte, size)
		check(t, f.Invoke(abi.IB_USER_VERBS_EX_CMD_QUERY_DEVICE|abi.IB_USER_VERBS_CMD_FLAG_EXTENDED, mmap.Bytes(&abi.IbUverbsExQueryDevice{}), out, nil, nil))
		var resp abi.IbUverbsExQueryDeviceResp
		copy(mmap.Bytes(&resp), out)
		if resp.Base.PhysPortCnt != 1 || int(resp.ResponseLength) != size {
			t.Errorf("room for %d bytes: response of %d: %+v", size, resp.ResponseLength, resp.Base)
		}
	}
}

// newQP makes a QP and returns its handle.
func newQP(t testing.TB, f sys.File, typ verbs.QPType) uint32 {
	t.Helper()
	cq, _, err := createCQ(f, 10, -1)
	check(t, err)
	qp, err := createQP(f, uint64(typ), allocPD(t, f), cq)
	check(t, err)
	return qp
}

// TestDoorbell rings the doorbell of a QP as drivers do: without an allocation.
func TestDoorbell(t *testing.T) {
	f := openContext(t, newDevice(t))
	qp := newQP(t, f, verbs.UD)
	dev := &provider.Device{FD: f.FD, Driver: f.Driver}
	bell, err := provider.NewDoorbell(dev, qp, false)
	check(t, err)
	defer bell.Close()
	if err := bell.Ring(); err == nil {
		t.Error("a doorbell in RESET is taken")
	}
	want(t, "to RTS", modifyQP(f, qp, 0, verbs.StateRTS), syscall.EINVAL)
	want(t, "to an unknown state", modifyQP(f, qp, 0, 7), syscall.EINVAL)
	startQP(t, f, qp)
	if n := testing.AllocsPerRun(100, func() {
		if err := bell.Ring(); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
	want(t, "EX_MODIFY_QP", f.Invoke(abi.IB_USER_VERBS_EX_CMD_MODIFY_QP|abi.IB_USER_VERBS_CMD_FLAG_EXTENDED, mmap.Bytes(&abi.IbUverbsExModifyQp{
		Base: abi.IbUverbsModifyQp{QpHandle: qp},
	}), nil, nil, nil), syscall.EOPNOTSUPP)
	query := provider.NewStateQuery(dev, qp)
	if state, err := query.Ask(); state != verbs.StateRTS || err != nil {
		t.Errorf("the QP is in %v, %v", state, err)
	}
	query.Close()
}

// modifyQP moves a UD QP to a state.
func modifyQP(f sys.File, qp uint32, mask verbs.QPAttrMask, state verbs.QPState) error {
	return f.Invoke(abi.IB_USER_VERBS_CMD_MODIFY_QP, mmap.Bytes(&abi.IbUverbsModifyQp{
		QpHandle: qp, AttrMask: uint32(mask | verbs.MaskState), QpState: uint8(state), PortNum: 1, Qkey: 1,
	}), nil, nil, nil)
}

// startQP moves a UD QP from RESET to RTS.
func startQP(t testing.TB, f sys.File, qp uint32) {
	t.Helper()
	check(t, modifyQP(f, qp, verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey, verbs.StateInit))
	check(t, modifyQP(f, qp, 0, verbs.StateRTR))
	check(t, modifyQP(f, qp, verbs.MaskSQPSN, verbs.StateRTS))
}

// BenchmarkDoorbell rings the doorbell of an idle QP.
func BenchmarkDoorbell(b *testing.B) {
	f := openContext(b, newDevice(b))
	qp := newQP(b, f, verbs.UD)
	startQP(b, f, qp)
	bell, err := provider.NewDoorbell(&provider.Device{FD: f.FD, Driver: f.Driver}, qp, false)
	check(b, err)
	defer bell.Close()
	b.ReportAllocs()
	for b.Loop() {
		if err := bell.Ring(); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzWrite writes any command whose answer is for no memory, or for some that is there.
func FuzzWrite(f *testing.F) {
	e, err := engine.New(engine.Config{Name: "test", Network: verbstest.NewNetwork(verbstest.Options{TraceLimit: -1}), Addrs: []netip.Addr{netip.MustParseAddr("10.9.0.1")}})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { e.Close() })
	d := kernel.NewDevice(e)
	for cmd := range uint32(50) {
		for _, words := range []uint16{2, 4, 8, 20} {
			f.Add(append(header(cmd, words, 8), make([]byte, 4*words-8)...), cmd%2 == 0)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, room bool) {
		file := openContext(t, d)
		newQP(t, file, verbs.RC)
		var pin runtime.Pinner
		defer pin.Unpin()
		answer := make([]byte, 4<<16)
		if len(b) >= 16 {
			binary.NativeEndian.PutUint64(b[8:], 0)
			if room {
				binary.NativeEndian.PutUint64(b[8:], mmap.Pin(&pin, answer))
			}
		}
		if n, err := host.Write(file.FD, b); err == nil && n != len(b) {
			t.Errorf("% x: %d bytes", b, n)
		}
	})
}
