package uverbs

import (
	"errors"
	"fmt"

	"github.com/goverbs/verbs"
)

// Endpoint is what a peer must know to connect an RC or UC QP to this one. Programs
// without a connection manager exchange it by other means, once.
type Endpoint struct {
	QPNum uint32
	PSN   uint32 // of the first packet this side sends; 24 bits
	GID   verbs.GID
	LID   uint16 // InfiniBand only

	// Local side only:
	Port     uint8
	GIDIndex uint8
}

// ConnectOptions tune [QP.Connect]. The zero value is right for messages; a peer
// that writes, reads or does atomics needs Access.
type ConnectOptions struct {
	Access      verbs.Access // what the peer may do, where an MR allows it as well; zero is nothing but send
	PathMTU     verbs.MTU    // the port's active MTU if zero
	RDAtomic    uint8        // RDMA READs in flight, both ways; 16 if zero
	Timeout     uint8        // see [verbs.QPAttr]; 14 (67 ms) if zero
	RetryCount  uint8        // 6 if zero; rxe takes 7 for no end
	RNRRetry    uint8        // 7 (for ever) if zero
	MinRNRTimer uint8        // 12 (0.64 ms) if zero
	SL          uint8        // service level
}

// Endpoint describes the QP for its peer, on the best GID of a port.
func (q *QP) Endpoint(port int, psn uint32) (Endpoint, error) {
	p, err := q.pd.ctx.QueryPort(port)
	if err != nil {
		return Endpoint{}, err
	}
	e := Endpoint{QPNum: q.num, PSN: psn & 0xffffff, LID: p.LID, Port: uint8(port)}
	gid, err := q.pd.ctx.FindGID(port, noAddr)
	if err != nil {
		return Endpoint{}, err
	}
	e.GID, e.GIDIndex = gid.GID, uint8(gid.Index)
	return e, nil
}

// Connect moves an RC or UC QP from RESET to RTS, towards remote. Receives may
// be posted before, between, or after; they must be there before remote sends.
// On iWARP only package cm can connect.
func (q *QP) Connect(local, remote Endpoint, opt ConnectOptions) error {
	if q.pd.ctx.device.IWARP() {
		return q.obj.fail("connect", fmt.Errorf("on iWARP only package cm can: %w", errors.ErrUnsupported))
	}
	def := func(v *uint8, d uint8) {
		if *v == 0 {
			*v = d
		}
	}
	def(&opt.RDAtomic, 16)
	def(&opt.Timeout, 14)
	def(&opt.RetryCount, 6)
	def(&opt.RNRRetry, 7)
	def(&opt.MinRNRTimer, 12)
	if opt.PathMTU == 0 {
		p, err := q.pd.ctx.QueryPort(int(local.Port))
		if err != nil {
			return err
		}
		opt.PathMTU = p.ActiveMTU
	}
	steps := []step{{
		verbs.QPAttr{State: verbs.StateInit, Port: local.Port, Access: opt.Access},
		verbs.MaskState | verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccess,
	}, {
		verbs.QPAttr{
			State: verbs.StateRTR, PathMTU: opt.PathMTU, DestQPNum: remote.QPNum, RQPSN: remote.PSN,
			MaxDestRDAtomic: opt.RDAtomic, MinRNRTimer: opt.MinRNRTimer,
			AV: verbs.AddressVector{
				Global: remote.GID != verbs.GID{}, DGID: remote.GID, SGIDIndex: local.GIDIndex,
				HopLimit: 64, DLID: remote.LID, SL: opt.SL, Port: local.Port,
			},
		},
		verbs.MaskState | verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPNum | verbs.MaskRQPSN | verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer,
	}, {
		verbs.QPAttr{
			State: verbs.StateRTS, SQPSN: local.PSN, Timeout: opt.Timeout, RetryCount: opt.RetryCount,
			RNRRetry: opt.RNRRetry, MaxRDAtomic: opt.RDAtomic,
		},
		verbs.MaskState | verbs.MaskSQPSN | verbs.MaskTimeout | verbs.MaskRetryCount | verbs.MaskRNRRetry | verbs.MaskMaxRDAtomic,
	}}
	if q.typ == verbs.UC { // which knows of no acknowledgements, so of no retries and reads
		steps[1].mask &^= verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer
		steps[2].mask = verbs.MaskState | verbs.MaskSQPSN
	}
	if err := q.take(steps); err != nil {
		return fmt.Errorf("connect to QP %d: %w", remote.QPNum, err)
	}
	return nil
}

// step is a state transition.
type step struct {
	attr verbs.QPAttr
	mask verbs.QPAttrMask
}

func (q *QP) take(steps []step) error {
	for _, s := range steps {
		if err := q.Modify(s.attr, s.mask); err != nil {
			return err
		}
	}
	return nil
}

// StartUD moves a UD QP from RESET to RTS on a port. Peers must name qkey to
// reach it.
func (q *QP) StartUD(port int, qkey uint32) error {
	return q.take([]step{
		{verbs.QPAttr{State: verbs.StateInit, Port: uint8(port), QKey: qkey}, verbs.MaskState | verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskQKey},
		{verbs.QPAttr{State: verbs.StateRTR}, verbs.MaskState},
		{verbs.QPAttr{State: verbs.StateRTS}, verbs.MaskState | verbs.MaskSQPSN},
	})
}
