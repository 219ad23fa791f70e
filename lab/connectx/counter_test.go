//go:build linux

package connectx

import (
	"bytes"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

// qCounters returns the counters of QUERY_Q_COUNTER.
func (m *machine) qCounters() func(ifc.Field) uint64 {
	m.t.Helper()
	out, _ := m.mustRun(ifc.OpQueryQCounter, 0, nil)
	return func(f ifc.Field) uint64 { return f.Get(out) }
}

// TestQCounters has each event happen that is counted, and sees it counted once, and in no other
// counter but those that are named.
func TestQCounters(t *testing.T) {
	all := map[string]ifc.Field{
		"rx_write_requests": ifc.QueryQCounterOutRxWriteRequests, "rx_read_requests": ifc.QueryQCounterOutRxReadRequests, "rx_atomic_requests": ifc.QueryQCounterOutRxAtomicRequests,
		"out_of_buffer": ifc.QueryQCounterOutOutOfBuffer, "out_of_sequence": ifc.QueryQCounterOutOutOfSequence, "duplicate_request": ifc.QueryQCounterOutDuplicateRequest,
		"rnr_nak_retry_err": ifc.QueryQCounterOutRnrNakRetryErr, "packet_seq_err": ifc.QueryQCounterOutPacketSeqErr, "implied_nak_seq_err": ifc.QueryQCounterOutImpliedNakSeqErr,
		"local_ack_timeout_err": ifc.QueryQCounterOutLocalAckTimeoutErr, "req_rnr_retries_exceeded": ifc.QueryQCounterOutReqRnrRetriesExceeded,
		"resp_local_length_error": ifc.QueryQCounterOutRespLocalLengthError, "req_local_length_error": ifc.QueryQCounterOutReqLocalLengthError,
		"local_operation_error": ifc.QueryQCounterOutLocalOperationError, "resp_local_protection": ifc.QueryQCounterOutRespLocalProtection,
		"req_local_protection": ifc.QueryQCounterOutReqLocalProtection, "resp_cqe_error": ifc.QueryQCounterOutRespCqeError, "req_cqe_error": ifc.QueryQCounterOutReqCqeError,
		"req_mw_binding": ifc.QueryQCounterOutReqMwBinding, "req_remote_invalid_request": ifc.QueryQCounterOutReqRemoteInvalidRequest,
		"resp_remote_invalid_request": ifc.QueryQCounterOutRespRemoteInvalidRequest, "req_remote_access_errors": ifc.QueryQCounterOutReqRemoteAccessErrors,
		"resp_remote_access_errors": ifc.QueryQCounterOutRespRemoteAccessErrors, "req_remote_operation_errors": ifc.QueryQCounterOutReqRemoteOperationErrors,
		"req_transport_retries_exceeded": ifc.QueryQCounterOutReqTransportRetriesExceeded, "cq_overflow": ifc.QueryQCounterOutCqOverflow,
		"resp_cqe_flush_error": ifc.QueryQCounterOutRespCqeFlushError, "req_cqe_flush_error": ifc.QueryQCounterOutReqCqeFlushError,
	}
	type counts map[string]uint64
	for _, tt := range []struct {
		name string
		do   func(m *machine, x, y *testQP)
		want counts
		more []string // counted at least once
	}{
		{"WRITE, READ and atomic", func(m *machine, x, y *testQP) {
			x.post(ifc.OpcodeRdmaWrite, 0, 0, remoteSeg(base, m.key), seg(8000, m.key, base))
			x.post(ifc.OpcodeRdmaRead, 0, 0, remoteSeg(base, m.key), seg(8, m.key, base))
			x.post(ifc.OpcodeAtomicFa, update, 0, remoteSeg(base, m.key), make([]byte, 16), seg(8, m.key, base))
			x.send.expect(cqeRequest, x.pi-1, 0)
		}, counts{"rx_write_requests": 1, "rx_read_requests": 1, "rx_atomic_requests": 1}, nil},
		{"no receive", func(m *machine, x, y *testQP) {
			x.post(ifc.OpcodeSend, update, 0)
			labtest.Until(m.t, "the NAK", func() bool { return m.qCounters()(ifc.QueryQCounterOutRnrNakRetryErr) > 0 })
			y.postRecv()
			x.send.expect(cqeRequest, 0, 0)
			y.recv.expect(cqeSend, 0, 0)
		}, counts{}, []string{"out_of_buffer", "rnr_nak_retry_err"}},
		{"retries without a receive", func(m *machine, x, y *testQP) {
			x.mustModify(ifc.OpRts2rtsQp, nil)
			x.mustModify(ifc.Op2rstQp, nil)
			x.rnrRetry = 1
			x.connect(y.num, m.addr())
			x.post(ifc.OpcodeSend, 0, 0)
			x.send.expect(cqeRequestError, 0, 0x16)
		}, counts{"out_of_buffer": 2, "rnr_nak_retry_err": 2, "req_rnr_retries_exceeded": 1, "req_cqe_error": 1}, nil},
		{"nobody answers", func(m *machine, x, y *testQP) {
			y.mustModify(ifc.Op2errQp, nil)
			x.mustModify(ifc.Op2rstQp, nil)
			x.retries = 2
			x.connect(y.num, m.addr())
			x.post(ifc.OpcodeSend, 0, 0)
			x.send.expect(cqeRequestError, 0, 0x15)
		}, counts{"local_ack_timeout_err": 2, "req_transport_retries_exceeded": 1, "req_cqe_error": 1}, nil},
		{"local length", func(m *machine, x, y *testQP) {
			y.postRecv(seg(8, m.key, base))
			x.post(ifc.OpcodeSend, 0, 0, seg(9, m.key, base))
			x.send.expect(cqeRequestError, 0, 0x12)
			y.recv.expect(cqeReceiveError, 0, 0x01)
		}, counts{"resp_local_length_error": 1, "resp_cqe_error": 1, "req_remote_invalid_request": 1, "req_cqe_error": 1}, nil},
		{"malformed request, and one behind it", func(m *machine, x, y *testQP) {
			x.put(0x3f, 0, 0)
			x.post(ifc.OpcodeSend, 0, 0)
			x.send.expect(cqeRequestError, 0, 0x02)
			x.send.expect(cqeRequestError, 1, 0x05)
		}, counts{"local_operation_error": 1, "req_cqe_flush_error": 1, "req_cqe_error": 2}, nil},
		{"local protection", func(m *machine, x, y *testQP) {
			x.post(ifc.OpcodeSend, 0, 0, seg(8, m.key^1, base))
			x.send.expect(cqeRequestError, 0, 0x04)
		}, counts{"req_local_protection": 1, "req_cqe_error": 1}, nil},
		{"protection of a receive", func(m *machine, x, y *testQP) {
			y.postRecv(seg(8, m.key^1, base))
			x.post(ifc.OpcodeSend, 0, 0, seg(8, m.key, base))
			x.send.expect(cqeRequestError, 0, 0x14)
			y.recv.expect(cqeReceiveError, 0, 0x04)
		}, counts{"resp_local_protection": 1, "resp_cqe_error": 1, "req_remote_operation_errors": 1, "req_cqe_error": 1}, nil},
		{"remote access", func(m *machine, x, y *testQP) {
			x.post(ifc.OpcodeRdmaWrite, 0, 0, remoteSeg(base, m.key^1), seg(8, m.key, base))
			x.send.expect(cqeRequestError, 0, 0x13)
		}, counts{"rx_write_requests": 1, "req_remote_access_errors": 1, "resp_remote_access_errors": 1, "req_cqe_error": 1}, nil},
		{"bind", func(m *machine, x, y *testQP) {
			x.bind(1, 0xffff00, 0, base, 8, seg(8, m.key, base))
		}, counts{"req_mw_binding": 1, "req_cqe_error": 1}, nil},
		{"flushed receives", func(m *machine, x, y *testQP) {
			y.postRecv()
			y.postRecv()
			y.mustModify(ifc.Op2errQp, nil)
			y.recv.expect(cqeReceiveError, 0, 0x05)
			y.recv.expect(cqeReceiveError, 1, 0x05)
		}, counts{"resp_cqe_flush_error": 2, "resp_cqe_error": 2}, nil},
		{"overflow", func(m *machine, x, y *testQP) {
			m.withCQ(m.createCQ(1, 64)).nops(3)
		}, counts{"cq_overflow": 1}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t, newHub(), 1)
			x, y := pair(m, m, ifc.QpTypeRc)
			tt.do(m, x, y)
			get := m.qCounters()
			for name, f := range all {
				n := get(f)
				for _, more := range tt.more {
					if more == name && n > 0 {
						n = tt.want[name]
					}
				}
				if want := tt.want[name]; n != want {
					t.Errorf("%s is %d, want %d", name, n, want)
				}
			}
		})
	}
}

// readRegister reads a register by ACCESS_REG.
func (m *machine) readRegister(id uint64, size int, prepare func(reg []byte)) []byte {
	m.t.Helper()
	l := ifc.Layouts[ifc.OpAccessReg]
	in := make([]byte, l.In+size)
	be.PutUint16(in, ifc.OpAccessReg)
	be.PutUint16(in[6:], 1) // read
	ifc.AccessRegisterInRegisterId.Set(in, id)
	prepare(ifc.AccessRegisterInRegisterData.At(in))
	out := m.dev.execute(in, l.Out+size)
	if ifc.Status(out[0]) != ifc.StatusOk {
		m.t.Fatalf("register %#x: % x", id, out[:32])
	}
	return ifc.AccessRegisterOutRegisterData.At(out)
}

// portCounters reads a group of the port's counters.
func (m *machine) portCounters(grp, prio uint64) []byte {
	m.t.Helper()
	reg := m.readRegister(ifc.RegPpcnt, ifc.PpcntRegSize, func(reg []byte) {
		ifc.PpcntRegGrp.Set(reg, grp)
		ifc.PpcntRegPrioTc.Set(reg, prio)
		ifc.PpcntRegLocalPort.Set(reg, 1)
	})
	if ifc.PpcntRegGrp.Get(reg) != grp || ifc.PpcntRegLocalPort.Get(reg) != 1 {
		m.t.Fatalf("PPCNT % x", reg[:32])
	}
	return ifc.PpcntRegCounterSet.At(reg)
}

// TestFrameSizes sorts frames by their size with the check sequence of 4 bytes (RFC 2819,
// etherStatsPkts64Octets and further).
func TestFrameSizes(t *testing.T) {
	for class, last := range []int{64, 127, 255, 511, 1023, 1518, 2047, 4095, 8191, 10239} {
		if got := sizeOf(last - 4); got != class {
			t.Errorf("%d bytes are of class %d, want %d", last, got, class)
		}
		if got := sizeOf(last + 1 - 4); got != min(class+1, 9) {
			t.Errorf("%d bytes are of class %d, want %d", last+1, got, min(class+1, 9))
		}
	}
}

func TestPortCounters(t *testing.T) {
	h := newHub()
	a, b := newMachine(t, h, 1).newNetdev(), newMachine(t, h, 2).newNetdev()
	frames := []struct {
		to   []byte
		size int
	}{
		{[]byte{2, 0, 0, 0, 0, 2}, 60}, {[]byte{2, 0, 0, 0, 0, 2}, 61}, {[]byte{1, 0, 0, 0, 0, 1}, 500}, {bytes.Repeat([]byte{0xff}, 6), 1514},
		{[]byte{2, 0, 0, 0, 0, 2}, 1515},
	}
	octets := uint64(0)
	for _, f := range frames {
		frame := make([]byte, f.size)
		copy(frame, f.to)
		data := a.m.next
		copy(a.m.bytes(data, f.size), frame)
		a.sendCQ.expect(cqeRequest, a.send(ifc.OpcodeSend, ethSeg(0, 0, nil, 0), seg(f.size, a.key, data)), 0)
		b.receive()
		octets += uint64(f.size)
	}
	type high = ifc.Field
	for _, c := range []struct {
		m         *machine
		grp, prio uint64
		f         high
		want      uint64
	}{
		{a.m, group8023, 0, ifc.Eth8023CntrsGrpDataLayoutAFramesTransmittedOkHigh, 5},
		{a.m, group8023, 0, ifc.Eth8023CntrsGrpDataLayoutAOctetsTransmittedOkHigh, octets},
		{a.m, group8023, 0, ifc.Eth8023CntrsGrpDataLayoutAFramesReceivedOkHigh, 0},
		{b.m, group8023, 0, ifc.Eth8023CntrsGrpDataLayoutAFramesReceivedOkHigh, 5},
		{b.m, group8023, 0, ifc.Eth8023CntrsGrpDataLayoutAMulticastFramesReceivedOkHigh, 1},
		{b.m, group2863, 0, ifc.Eth2863CntrsGrpDataLayoutIfInUcastPktsHigh, 3},
		{b.m, group2863, 0, ifc.Eth2863CntrsGrpDataLayoutIfInBroadcastPktsHigh, 1},
		{a.m, group2863, 0, ifc.Eth2863CntrsGrpDataLayoutIfOutUcastPktsHigh, 3},
		{b.m, group2819, 0, ifc.Eth2819CntrsGrpDataLayoutEtherStatsOctetsHigh, octets},
		{b.m, group2819, 0, ifc.Eth2819CntrsGrpDataLayoutEtherStatsPkts64octetsHigh, 1},
		{b.m, group2819, 0, ifc.Eth2819CntrsGrpDataLayoutEtherStatsPkts65to127octetsHigh, 1},
		{b.m, group2819, 0, ifc.Eth2819CntrsGrpDataLayoutEtherStatsPkts256to511octetsHigh, 1},
		{b.m, group2819, 0, ifc.Eth2819CntrsGrpDataLayoutEtherStatsPkts512to1023octetsHigh, 0},
		{b.m, group2819, 0, ifc.Eth2819CntrsGrpDataLayoutEtherStatsPkts1024to1518octetsHigh, 1},
		{b.m, group2819, 0, ifc.Eth2819CntrsGrpDataLayoutEtherStatsPkts1519to2047octetsHigh, 1},
		{b.m, groupPriority, 0, ifc.EthPerPrioGrpDataLayoutRxFramesHigh, 5},
		{b.m, groupPriority, 0, ifc.EthPerPrioGrpDataLayoutRxOctetsHigh, octets},
		{a.m, groupPriority, 0, ifc.EthPerPrioGrpDataLayoutTxFramesHigh, 5},
		{b.m, groupPriority, 3, ifc.EthPerPrioGrpDataLayoutRxFramesHigh, 0},
		{b.m, 0x3f, 0, ifc.Eth8023CntrsGrpDataLayoutAFramesTransmittedOkHigh, 0},
	} {
		if got := (c.f&^0xffff | 64).Get(c.m.portCounters(c.grp, c.prio)); got != c.want {
			t.Errorf("group %#x, counter at %#x: %d, want %d", c.grp, c.f.Off(), got, c.want)
		}
	}
	// RDMA has counters of its own.
	x, y := pair(a.m, b.m, ifc.QpTypeRc)
	y.postRecv(seg(100, b.m.key, base))
	x.post(ifc.OpcodeSend, update, 0, seg(100, a.m.key, base))
	x.send.expect(cqeRequest, 0, 0)
	out, _ := a.m.mustRun(ifc.OpQueryVportCounter, 0, nil)
	sent := ifc.QueryVportCounterOutTransmittedIbUnicast.At(out)
	// The BTH of 12 bytes, and the ICRC of 4.
	if p, o := ifc.TrafficCounterPackets.Get(sent), ifc.TrafficCounterOctets.Get(sent); p != 1 || o != 116 {
		t.Errorf("%d packets of %d octets", p, o)
	}
	ext := b.m.portCounters(groupIBExtends, 0)
	if n := (ifc.IbExtPortCntrsGrpDataLayoutPortRcvDataHigh&^0xffff | 64).Get(ext); n != 116/4 {
		t.Errorf("%d words have been received", n)
	}
	if n := (ifc.IbExtPortCntrsGrpDataLayoutPortRcvPktsHigh&^0xffff | 64).Get(ext); n != 1 {
		t.Errorf("%d packets have been received", n)
	}
}
