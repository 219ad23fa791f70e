//go:build linux

package erdma

import (
	"fmt"
	"net/netip"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/engine"
)

// In RoCE mode the driver makes UD QPs too, and connects QPs itself, as that of a ConnectX does. On the
// wire they have the numbers that it gives them.

// Limits of RoCE mode, as powers of two.
const (
	logGIDs = 4
	logAHs  = 10
)

// Types of QPs, ERDMA_QPT_*.
const (
	qpRC = 0
	qpUD = 1
)

// gsiNum is the number of the QP for the general services interface. The driver may give it none.
const gsiNum = 1

// roceInit completes what the engine needs for a QP of RoCE mode.
func (q *qp) roceInit(typ uint32, init *engine.QPInit) error {
	switch {
	case typ > qpUD:
		return fmt.Errorf("QP %d of type %d: %w", q.num, typ, errInvalid)
	case typ == qpUD:
		init.Type, init.Execute, init.Invalidate = verbs.UD, nil, nil
		q.datagram = true
	}
	init.Num = q.num
	return nil
}

// States of QPs in RoCE mode, enum erdma_qps_rocev2. Of others than these the adapter knows nothing.
var roceStates = map[qpState]verbs.QPState{0: verbs.StateReset, 1: verbs.StateInit, 2: verbs.StateRTR, 3: verbs.StateRTS, 6: verbs.StateErr}

// Attributes that a change names, enum erdma_qpa_mask_rocev2.
const (
	attrState   = 1 << 0
	attrQKey    = 1 << 1
	attrVector  = 1 << 2
	attrSendPSN = 1 << 3
	attrRecvPSN = 1 << 4
	attrPeer    = 1 << 5
)

// modifyRoCE is struct erdma_cmdq_mod_qp_req_rocev2.
func (q *qp) modifyRoCE(b []byte) error {
	state, mask := qpState(le.Uint32(b[8:])>>24), le.Uint32(b[16:])
	from, to := roceStates[q.state], verbs.StateReset
	var ok bool
	if to, ok = roceStates[state]; !ok || mask&attrState == 0 {
		return fmt.Errorf("QP %d: state %d, attributes %#x: %w", q.num, state, mask, errInvalid)
	}
	attr := &verbs.QPAttr{
		State: to, Port: 1, QKey: le.Uint32(b[20:]), RQPSN: le.Uint32(b[24:]) & 0xffffff, SQPSN: le.Uint32(b[28:]) & 0xffffff,
		DestQPNum: le.Uint32(b[12:]) & 0xfffff, PathMTU: q.d.mtu, MaxDestRDAtomic: maxReads, MaxRDAtomic: maxReads,
		MinRNRTimer: 12, Timeout: 14, RetryCount: 7, RNRRetry: 7, // the driver names none of these
		Access: verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic,
		AV:     vector(b[32:]),
	}
	known, least := verbs.MaskState, uint32(0)
	switch {
	case to == verbs.StateReset, to == verbs.StateErr:
	case from == to: // only the Q_Key has an effect
		if !q.datagram || mask&attrQKey == 0 {
			return nil
		}
		known |= verbs.MaskQKey
	case to == verbs.StateInit && q.datagram:
		known, least = known|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey, attrQKey
	case to == verbs.StateInit:
		known |= verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccess
	case to == verbs.StateRTR && !q.datagram:
		known |= verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPNum | verbs.MaskRQPSN | verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer
		least = attrVector | attrRecvPSN | attrPeer
	case to == verbs.StateRTS:
		known, least = known|verbs.MaskSQPSN, attrSendPSN
		if !q.datagram {
			known |= verbs.MaskTimeout | verbs.MaskRetryCount | verbs.MaskRNRRetry | verbs.MaskMaxRDAtomic
		}
	}
	if mask&least != least {
		return fmt.Errorf("QP %d: from %v to %v with attributes %#x of %#x: %w", q.num, from, to, mask, least, errInvalid)
	}
	if err := q.e.Modify(attr, known); err != nil {
		return fmt.Errorf("QP %d: from %v to %v: %w", q.num, from, to, err)
	}
	q.state = state
	switch to {
	case verbs.StateErr:
		q.failed()
	case verbs.StateReset: // the engine calls nothing now
		q.sent, q.received, q.then = 0, 0, nil
		q.shown.Store(0)
		q.posted.Store(0)
		q.told.Store(false)
	case verbs.StateRTS:
		q.e.Doorbell()
	}
	return nil
}

// vector returns the path of an address vector, struct erdma_av_cfg.
func vector(b []byte) verbs.AddressVector {
	return verbs.AddressVector{
		Global: true, Port: 1, FlowLabel: le.Uint32(b) & 0xfffff, TrafficClass: b[4], HopLimit: b[5], SGIDIndex: uint8(min(le.Uint16(b[10:]), 255)),
		DGID: verbs.GID(b[20:36]),
	}
}

// queryQP answers with the next numbers of packets and the state, ERDMA_CMD_QUERY_QP_RESP_*.
func (d *Device) queryQP(b []byte, r *response) error {
	q, err := d.findQP(le.Uint32(b[8:]))
	if err != nil {
		return err
	}
	a := q.e.Query()
	for state, s := range roceStates {
		if s == a.State {
			r[0] = uint64(a.SQPSN) | uint64(a.RQPSN)<<24 | uint64(state)<<48
			return nil
		}
	}
	return fmt.Errorf("QP %d is in state %v: %w", q.num, a.State, errInvalid)
}

// setGID is struct erdma_cmdq_set_gid_req.
func (d *Device) setGID(b []byte, _ *response) error {
	cfg := le.Uint32(b[8:])
	i, addr := int(cfg&0xffff), netip.AddrFrom16([16]byte(b[12:28])).Unmap()
	if i >= 1<<logGIDs {
		return fmt.Errorf("GID %d of %d: %w", i, 1<<logGIDs, errInvalid)
	}
	if cfg>>31 != 0 {
		addr = netip.Addr{}
	} else if addr.Is4() == (cfg>>16&1 != 0) {
		return fmt.Errorf("GID %d is %v, not of type %d: %w", i, addr, cfg>>16&1, errInvalid)
	}
	// A network that needs the zone of a link-local address goes without this GID.
	if err := d.eng.SetGID(i, addr); err != nil && !addr.IsLinkLocalUnicast() {
		return err
	}
	return nil
}

// ah is an address handle.
type ah struct {
	pd *pd
	e  *engine.AH
}

// createAH is struct erdma_cmdq_create_ah_req.
func (d *Device) createAH(b []byte, _ *response) error {
	num := le.Uint32(b[12:])
	if num >= 1<<logAHs || d.ahs.Has(num) {
		return fmt.Errorf("address handle %d is in use, or not one of %d: %w", num, 1<<logAHs, errInvalid)
	}
	p, err := d.usePD(le.Uint32(b[8:]))
	if err != nil {
		return err
	}
	a := &ah{pd: p}
	if a.e, err = p.e.CreateAH(vector(b[16:])); err != nil {
		d.leavePD(p)
		return fmt.Errorf("address handle %d: %w", num, err)
	}
	d.ahs.Put(num, a)
	return nil
}

// destroyAH is struct erdma_cmdq_destroy_ah_req.
func (d *Device) destroyAH(b []byte, _ *response) error {
	num := le.Uint32(b[12:])
	a, ok := d.ahs.Get(num)
	if !ok || a.pd.num != le.Uint32(b[8:]) {
		return fmt.Errorf("no address handle %d in PD %d: %w", num, le.Uint32(b[8:]), errInvalid)
	}
	d.ahs.Remove(num)
	d.endAH(a)
	return nil
}

func (d *Device) endAH(a *ah) {
	a.e.Destroy()
	d.leavePD(a.pd)
}

// Offsets in a datagram's request, struct erdma_send_sqe_ud.
const (
	udQKey = 16
	udQPN  = 20
	udAH   = 24
)

// address fills in the destination of a datagram. It reports false if there is no such handle in the
// QP's PD.
func (q *qp) address(to *abi.RxeSendWrWrUd, wqe []byte) bool {
	a, ok := q.d.ahs.Get(le.Uint32(wqe[udAH:]))
	if !ok || a.pd != q.pd {
		return false
	}
	to.RemoteQpn, to.RemoteQkey, to.AhNum = le.Uint32(wqe[udQPN:])&0xfffff, le.Uint32(wqe[udQKey:]), a.e.Num()
	return true
}

// source returns what a completion says of the sender of a datagram, ERDMA_CQE_NTYPE_MASK and _SQPN_MASK.
func source(w *engine.Completion) uint32 {
	v := w.SrcQp & 0xfffff
	if !w.Src.Is4() {
		v |= 1 << 31
	}
	return v
}
