// Package endpoint makes the objects of one end of a connection, connects its QP to the one of
// another program or of this one, and posts and polls there:
//
//	Local                                         Local of the remote end
//	┌─────────────────────┐   Swap: Address       ┌─────────────────────┐
//	│ PD, CQs, MR, SRQ    │ ◄───────────────────► │ PD, CQs, MR, SRQ    │
//	│ QP ─ Connect        │   by any channel      │        Connect ─ QP │
//	├─────────────────────┤                       ├─────────────────────┤
//	│ Fill ──► MR ──► QP ─┼─ SEND, WRITE ────────►│ MR ──► Compare      │
//	│ Do ◄──────── SendCQ │                       │ RecvCQ ──────► Wait │
//	└─────────────────────┘                       └─────────────────────┘
//
// RoCE and InfiniBand connect by the addresses of the QPs, iWARP by the connection manager. [Both]
// is the channel of two ends in one process. Package scenario has what the ends then do.
package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/bridge"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/uverbs"
)

// Limit bounds connecting, and waiting for a completion: a request is retried for less. It is more
// in tests on busy machines.
var Limit = 10 * time.Second

// QKey is the Q_Key of UD QPs.
const QKey = 0x11111111

// Port is where a QP is.
type Port struct {
	Dev          *uverbs.Context
	Num          int            // 1 if zero
	GID          verbs.GIDEntry // the port's best if zero
	TrafficClass uint8          // or type of service, of the packets
}

// Options describe the objects. The zero value is usable.
type Options struct {
	Type      verbs.QPType // RC if zero
	CM        bool         // connect by the connection manager, as iWARP always does
	Cap       verbs.QPCap
	Memory    int          // bytes of the MR; 64 KiB if zero
	Access    verbs.Access // to the MR; [RemoteAccess] if zero
	Events    bool         // the CQs have a channel
	SignalAll bool
	SRQ       bool
	OneCQ     bool                  // for both queues
	Depth     int                   // of each CQ; enough for all requests if zero
	PSN       uint32                // random if zero
	RC        uverbs.ConnectOptions // Access is [RemoteAccess] if zero
}

// Local is the end in this program.
type Local struct {
	Port
	PD      *uverbs.PD
	Channel *uverbs.CompChannel // nil unless Options.Events is set
	SendCQ  *uverbs.CQ
	RecvCQ  *uverbs.CQ
	SRQ     *uverbs.SRQ // nil unless Options.SRQ is set
	MR      *uverbs.MR
	QP      *uverbs.QP   // once connected
	Remote  Address      // of the other end, once connected
	To      verbs.UDAddr // the other end, on UD
	WCs     []verbs.WC   // the last ones that Wait returned

	opt     Options
	objects []io.Closer // in the order of their creation
}

// Address is what an end tells the other one. Fields that a message does not need are zero.
type Address struct {
	CM   string        `json:"cm,omitempty"` // an address to dial
	QP   *verbs.QPAddr `json:"qp,omitempty"`
	MTU  verbs.MTU     `json:"mtu,omitempty"`
	Addr uint64        `json:"addr,omitempty"` // of memory
	RKey uint32        `json:"rkey,omitempty"`
}

// Swap sends an address to the other end and returns the one that it has sent. Both ends call it
// equally often, so each call is also a point that both have reached.
type Swap func(Address) (Address, error)

// RemoteAccess returns all rights that a device can give its peers.
func RemoteAccess(dev *uverbs.Context) verbs.Access {
	if dev.Probe(uverbs.FeatureAtomics) != nil {
		return verbs.AccessAll &^ verbs.AccessRemoteAtomic
	}
	return verbs.AccessAll
}

// Addr returns the address of this machine at which a device is best reached: not link-local, and
// IPv4, if there is a choice.
func Addr(dev uverbs.Device) (netip.Addr, error) {
	addrs, err := cm.DeviceAddrs(dev)
	if err != nil {
		return netip.Addr{}, err
	}
	return slices.MinFunc(addrs, func(a, b netip.Addr) int { return cmp.Compare(rank(a), rank(b)) }), nil
}

func rank(a netip.Addr) int {
	switch {
	case a.IsLinkLocalUnicast():
		return 2
	case !a.Is4():
		return 1
	}
	return 0
}

// New makes all objects but the QP.
func New(port Port, o Options) (l *Local, err error) {
	o.Type = cmp.Or(o.Type, verbs.RC)
	defaults := verbs.QPCap{}.WithDefaults()
	if o.Cap == (verbs.QPCap{}) {
		defaults.MaxSendSGE, defaults.MaxRecvSGE = 4, 4
	}
	o.Cap = bridge.LimitCap(port.Dev, o.Cap, defaults)
	o.Access = cmp.Or(o.Access, RemoteAccess(port.Dev))
	o.RC.Access = cmp.Or(o.RC.Access, RemoteAccess(port.Dev))
	o.RC.TrafficClass = port.TrafficClass
	port.Num = cmp.Or(port.Num, 1)
	made := &Local{Port: port, opt: o}
	defer func() {
		if err != nil {
			l, err = nil, errors.Join(err, made.Close())
		}
	}()
	l = made
	if l.PD, err = Own(port.Dev.AllocPD())(l); err != nil {
		return nil, err
	}
	// Drivers round queues up, at most to twice the size.
	cq := uverbs.CQOptions{Depth: cmp.Or(o.Depth, 2*(o.Cap.MaxSendWR+o.Cap.MaxRecvWR)+1)}
	if o.Events {
		if l.Channel, err = Own(port.Dev.CreateCompChannel())(l); err != nil {
			return nil, err
		}
		cq.Channel = l.Channel
	}
	if l.SendCQ, err = Own(port.Dev.CreateCQ(cq))(l); err != nil {
		return nil, err
	}
	if l.RecvCQ = l.SendCQ; !o.OneCQ {
		if l.RecvCQ, err = Own(port.Dev.CreateCQ(cq))(l); err != nil {
			return nil, err
		}
	}
	if l.MR, err = Own(l.PD.AllocMR(cmp.Or(o.Memory, 64<<10), o.Access, uverbs.MROptions{}))(l); err != nil || !o.SRQ {
		return l, err
	}
	l.SRQ, err = Own(l.PD.CreateSRQ(uverbs.SRQOptions{MaxWR: o.Cap.MaxRecvWR, MaxSGE: o.Cap.MaxRecvSGE}))(l)
	return l, err
}

// Own lets Close of an end close what a constructor has made.
func Own[T io.Closer](obj T, err error) func(*Local) (T, error) {
	return func(l *Local) (T, error) {
		if err == nil {
			l.objects = append(l.objects, obj)
		}
		return obj, err
	}
}

// Close closes the objects, the last one first.
func (l *Local) Close() error {
	var errs []error
	for _, obj := range slices.Backward(l.objects) {
		errs = append(errs, obj.Close())
	}
	l.objects = nil
	return errors.Join(errs...)
}

// IWARP reports whether the QP is one of iWARP: the end that dials sends first.
func (l *Local) IWARP() bool { return l.Dev.Device().IWARP() }

// Connect makes the QP and connects it. The remote end may not be able to receive yet: swap once
// more before sending. With the connection manager one end dials and the other one listens.
func (l *Local) Connect(ctx context.Context, dials bool, swap Swap) error {
	if l.opt.CM || l.IWARP() {
		ctx, cancel := context.WithTimeoutCause(ctx, Limit, fmt.Errorf("no connection within %v", Limit))
		defer cancel()
		err := l.connectByCM(ctx, dials, swap)
		if err != nil && ctx.Err() != nil && !errors.Is(err, context.Cause(ctx)) {
			err = fmt.Errorf("%w: %w", host.Ended(ctx), err)
		}
		return err
	}
	o := &l.opt
	qp, err := Own(l.PD.CreateQP(uverbs.QPOptions{
		Type: o.Type, SendCQ: l.SendCQ, RecvCQ: l.RecvCQ, SRQ: l.SRQ, Cap: o.Cap, SignalAll: o.SignalAll,
	}))(l)
	if err != nil {
		return err
	}
	l.QP = qp
	if l.GID == (verbs.GIDEntry{}) {
		if l.GID, err = l.Dev.FindGID(l.Num, netip.Addr{}); err != nil {
			return err
		}
	}
	local, err := qp.AddrOn(l.GID)
	if err != nil {
		return err
	}
	local.PSN = cmp.Or(o.PSN, local.PSN)
	attr, err := l.Dev.QueryPort(l.Num)
	if err != nil {
		return err
	}
	l.Remote, err = swap(Address{QP: &local, MTU: attr.ActiveMTU, Addr: l.MR.Addr(), RKey: l.MR.RKey()})
	switch {
	case err != nil:
		return err
	case l.Remote.QP == nil:
		return errors.New("connect: the remote end sent no address of a QP: does it run another version?")
	case o.Type == verbs.UD:
		return l.startUD(local)
	}
	o.RC.PathMTU = cmp.Or(o.RC.PathMTU, min(attr.ActiveMTU, l.Remote.MTU))
	return qp.Connect(local, *l.Remote.QP, o.RC)
}

func (l *Local) startUD(local verbs.QPAddr) error {
	if err := l.QP.StartUD(l.Num, QKey); err != nil {
		return err
	}
	path := l.Remote.QP.PathFrom(local)
	path.TrafficClass = l.TrafficClass
	ah, err := l.PD.CreateAH(path)
	if err != nil {
		return err
	}
	last := len(l.objects) - 1
	l.objects = slices.Insert(l.objects, last, io.Closer(ah)) // closed after the QP, which uses it
	l.To = ah.To(l.Remote.QP.QPNum, QKey)
	return nil
}

func (l *Local) connectByCM(ctx context.Context, dials bool, swap Swap) error {
	addr, err := Addr(l.Dev.Device())
	if err != nil {
		if !l.IWARP() { // as InfiniBand without IPoIB
			err = fmt.Errorf("%w: %w", err, errors.ErrUnsupported)
		}
		return err
	}
	local := Address{Addr: l.MR.Addr(), RKey: l.MR.RKey()}
	var listener *cm.Listener
	if !dials {
		if listener, err = cm.Listen(ctx, netip.AddrPortFrom(addr, 0).String()); err != nil {
			return err
		}
		defer listener.Close()
		local.CM = listener.Addr().String()
	}
	if l.Remote, err = swap(local); err != nil {
		return err
	}
	opt := cm.Options{PD: l.PD, SendCQ: l.SendCQ, RecvCQ: l.RecvCQ, SRQ: l.SRQ, Cap: l.opt.Cap, SignalAll: l.opt.SignalAll}
	var e *cm.Endpoint
	if dials {
		d := cm.Dialer{Options: opt, LocalAddr: netip.AddrPortFrom(addr, 0), TOS: l.TrafficClass}
		e, err = d.Dial(ctx, l.Remote.CM)
	} else {
		var r *cm.Request
		if r, err = listener.Accept(ctx); err == nil {
			e, err = r.Accept(ctx, opt)
		}
	}
	if e, err = Own(e, err)(l); err == nil {
		l.QP = e.QP
	}
	return err
}
