package uverbs

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"

	"github.com/goverbs/verbs"
)

// ConnectOptions contains the attributes of a connection. A negative number means 0.
type ConnectOptions struct {
	Access  verbs.Access // rights of the peer, as far as the MR grants them as well; by default it can only send
	PathMTU verbs.MTU    // by default the port's active MTU

	MaxRDAtomic int // RDMA READs and atomics that this side has in flight; by default 16
	// MaxDestRDAtomic is the most READs and atomics of the peer that this side serves at a time; by
	// default 16. On rxe before Linux 7.3 it cannot be more than when the QP was connected before.
	MaxDestRDAtomic int

	Timeout     int // of an acknowledgement, 4.096 µs * 2^Timeout; by default 14 (67 ms), at most 31; 0 is infinite
	RetryCount  int // retries without an acknowledgement; by default 6, at most 7, which rxe takes as infinite
	RNRRetry    int // retries without a receive at the peer; by default 7, which is infinite
	MinRNRTimer int // how long a peer whose message found no receive waits, as in [verbs.QPAttr]; by default 12 (0.64 ms)

	PKeyIndex    int    // in the port's table
	SL           uint8  // service level
	TrafficClass uint8  // or type of service, of the packets
	FlowLabel    uint32 // 20 bits
	HopLimit     int    // by default 64
}

// attrs returns the attributes of all states that a QP passes through, for the path av.
func (o *ConnectOptions) attrs(av verbs.AddressVector) (a verbs.QPAttr, err error) {
	number := func(what string, n, zero, most int) uint8 {
		n = cmp.Or(n, zero)
		if n > most && err == nil {
			err = fmt.Errorf("%s %d, at most %d: %w", what, n, most, verbs.ErrRange)
		}
		return uint8(max(n, 0))
	}
	a = verbs.QPAttr{
		Access: o.Access, PathMTU: o.PathMTU,
		MaxRDAtomic:     number("MaxRDAtomic", o.MaxRDAtomic, 16, 255),
		MaxDestRDAtomic: number("MaxDestRDAtomic", o.MaxDestRDAtomic, 16, 255),
		Timeout:         number("Timeout", o.Timeout, 14, 31),
		RetryCount:      number("RetryCount", o.RetryCount, 6, 7),
		RNRRetry:        number("RNRRetry", o.RNRRetry, 7, 7),
		MinRNRTimer:     number("MinRNRTimer", o.MinRNRTimer, 12, 31),
		AV:              av,
	}
	a.AV.SL, a.AV.TrafficClass, a.AV.FlowLabel = o.SL, o.TrafficClass, o.FlowLabel
	a.AV.HopLimit = number("HopLimit", o.HopLimit, int(av.HopLimit), 255)
	if o.PKeyIndex > math.MaxUint16 {
		return a, rangeError("PKeyIndex", o.PKeyIndex, 0, math.MaxUint16)
	}
	a.PKeyIndex = uint16(max(o.PKeyIndex, 0))
	return a, err
}

// Addr returns the QP's address, with a port's best GID and a random PSN.
func (q *QP) Addr(port int) (verbs.QPAddr, error) {
	gid, err := q.pd.ctx.FindGID(port, anyAddr)
	if err != nil {
		return verbs.QPAddr{}, err
	}
	return q.AddrOn(gid)
}

// AddrOn returns the QP's address with a GID and a random PSN, which is not 0: some protocols, such as
// hipobj-rc-v2, have no PSN 0.
func (q *QP) AddrOn(gid verbs.GIDEntry) (verbs.QPAddr, error) {
	p, err := q.pd.ctx.QueryPort(gid.Port)
	if err != nil {
		return verbs.QPAddr{}, err
	}
	return verbs.QPAddr{
		QPNum: q.Num(), PSN: randomPSN(), GID: gid.GID, LID: p.LID, ECE: q.ECE(), Port: gid.Port, GIDIndex: gid.Index,
	}, nil
}

func randomPSN() uint32 { return 1 + rand.Uint32N(1<<24-1) }

// Connect moves an RC or UC QP from RESET to RTS and connects it to remote, which must connect to
// local. Post receives after Connect, as RESET takes none, and before remote sends. On iWARP only
// package cm connects. A connected QP lives until it is closed, see [QP.Modify].
func (q *QP) Connect(local, remote verbs.QPAddr, opt ConnectOptions) error {
	const op = "connect"
	if q.pd.ctx.device.IWARP() {
		return q.obj.fail(op, fmt.Errorf("iWARP QPs need package cm to connect: %w", errors.ErrUnsupported))
	}
	if opt.PathMTU == 0 {
		p, err := q.pd.ctx.QueryPort(local.Port)
		if err != nil {
			return err
		}
		opt.PathMTU = p.ActiveMTU
	}
	a, err := opt.attrs(remote.PathFrom(local))
	if err == nil && (local.Port < 1 || local.Port > math.MaxUint8 || local.GIDIndex < 0 || local.GIDIndex > math.MaxUint8) {
		err = fmt.Errorf("port %d, GID index %d: %w", local.Port, local.GIDIndex, verbs.ErrRange)
	}
	if err != nil {
		return q.obj.fail(op, err)
	}
	a.Port, a.SQPSN, a.RQPSN, a.DestQPNum = uint8(local.Port), local.PSN, remote.PSN, remote.QPNum
	a.ECE = remote.ECE

	masks := []verbs.QPAttrMask{
		verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccess,
		verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPNum | verbs.MaskRQPSN | verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer,
		verbs.MaskSQPSN | verbs.MaskTimeout | verbs.MaskRetryCount | verbs.MaskRNRRetry | verbs.MaskMaxRDAtomic,
	}
	if q.typ == verbs.UC { // UC has no acknowledgements, so neither retries nor reads
		masks[1] &^= verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer
		masks[2] = verbs.MaskSQPSN
	}
	if err := q.advance(a, masks...); err != nil {
		return fmt.Errorf("connect to QP %d: %w", remote.QPNum, err)
	}
	return nil
}

// advance moves a QP from RESET to INIT and the states behind it, as many as there are masks.
func (q *QP) advance(a verbs.QPAttr, masks ...verbs.QPAttrMask) error {
	for i, mask := range masks {
		a.State = verbs.StateInit + verbs.QPState(i)
		if err := q.Modify(a, mask|verbs.MaskState); err != nil {
			return err
		}
	}
	return nil
}

// familiesOf returns a hint if two GIDs have different address families, between which there is no
// path. The kernel says only EINVAL.
func familiesOf(local, remote verbs.GID) string {
	a, b := local.Addr(), remote.Addr()
	if a.Is4() == b.Is4() || local == (verbs.GID{}) || remote == (verbs.GID{}) {
		return ""
	}
	family := func(a netip.Addr) string {
		if a.Is4() {
			return "IPv4"
		}
		return "IPv6"
	}
	return fmt.Sprintf(" (no path from %v, which is %s, to %v, which is %s: use a local GID of that family, see Context.FindGID)", a, family(a), b, family(b))
}

// StartUD moves a UD QP from RESET to RTS on a port. Peers reach it with qkey.
func (q *QP) StartUD(port int, qkey uint32) error {
	if err := q.pd.ctx.checkPort(port); err != nil {
		return q.obj.fail("start", err)
	}
	a := verbs.QPAttr{Port: uint8(port), QKey: qkey}
	return q.advance(a, verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey, 0, verbs.MaskSQPSN)
}
