package cm

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/bridge"
	"github.com/goverbs/verbs/uverbs"
)

// Options contains the options of an endpoint. The zero value is usable. For a number, zero is
// the default and a negative value is 0; one out of range is refused with [verbs.ErrRange].
type Options struct {
	// PD is the PD of the QP, on the device that the address leads to. Nil makes a PD
	// for this connection.
	PD *uverbs.PD
	// SharePD, if PD is nil, makes all connections of the device that set it use one PD, and
	// so each other's memory regions; also their peers, if they learn the keys.
	SharePD bool
	// Cap is the size of the QP's queues, see [verbs.QPCap].
	Cap verbs.QPCap
	// Polled makes CQs faster, without a completion channel: PollWait fails.
	Polled bool
	// SendCQ and RecvCQ are CQs to share; nil makes one with room for the QP's
	// requests, and for as many receives as the SRQ holds now.
	// If the network has lost the peer's confirmation, a first message makes Accept return
	// only in a RecvCQ that is made here, or if the program calls [ID.Notify].
	SendCQ, RecvCQ *uverbs.CQ
	// SRQ, if set, is the queue, of the PD's device, that the QP takes its receives from, and the
	// QP has no receive queue of its own.
	SRQ *uverbs.SRQ
	// SignalAll makes every send request signaled.
	SignalAll bool
	// SingleThreaded leaves out the locks of the QP and of its CQs, see [uverbs.QPOptions]:
	// calls on them, and Disconnect and Close of the endpoint, must not overlap. When the peer
	// ends the connection, the program must move the QP to the error state to flush its requests.
	SingleThreaded bool
	// PrivateData is sent to the peer, see [MaxPrivateData].
	PrivateData []byte
	// ResponderResources is the number of RDMA READs and atomics of the peer that this side serves
	// at a time, InitiatorDepth the number that this side starts. The default is 16, the most 255;
	// the accepting side takes no more than the dialing side offers.
	ResponderResources, InitiatorDepth int
	// RetryCount is how often a request to a peer that does not answer is repeated, at
	// most 7. The default is 6, or the dialing side's number if that is less. With 7 rxe
	// repeats without end and never notices that the peer is gone.
	RetryCount int
	// RNRRetryCount is how often the peer repeats a request for which this side has no
	// receive posted. The default and the most are 7: without end.
	RNRRetryCount int
	// KeepAlive, if positive, is the interval of a test of the connection: an RDMA WRITE of no
	// bytes, which the peer's program does not see. If it fails, as the peer's machine is gone, the
	// connection ends with [verbs.ErrDisconnected] 5 s later on RoCE, and on iWARP when TCP gives
	// up. Each test completes in SendCQ, with the ID [KeepAliveID]. The program must poll it: no test
	// is made while a completion waits there. As this is work for the program, zero means no tests.
	// A test has a place of its own in the send queue. SingleThreaded connections cannot have tests.
	KeepAlive time.Duration
	// Prepare, if set, is called when the device that leads to the peer is known. It may
	// set PD, SendCQ, RecvCQ, SRQ and Cap for it. A dial calls it and Setup for each address.
	Prepare func(Route, *Options) error
	// Setup, if set, is called before the peer can send. It may post receives and announce
	// memory with [Endpoint.Announce]. If it fails, Dial or Accept fails.
	Setup func(*Endpoint) error
	// Logger, if set, logs the connection's steps. An open device logs to the first Logger of
	// its connections, see [uverbs.Context.SetLogger].
	Logger *slog.Logger

	defaults verbs.QPCap // of Cap: see [bridge.DefaultCap]
}

func init() {
	bridge.DefaultCap = func(options any, defaults verbs.QPCap) { options.(*Options).defaults = defaults }
}

// The defaults of options.
const (
	defaultReadDepth     = 16 // RDMA READs and atomics in flight
	defaultRetryCount    = 6
	defaultRNRRetryCount = 7
)

// optionValue returns the value of an option that check has accepted.
func optionValue(n int, zero uint8) uint8 {
	if n == 0 {
		return zero
	}
	return uint8(max(n, 0))
}

func (opt *Options) check() error {
	if err := checkPrivateData(opt.PrivateData); err != nil {
		return err
	}
	switch {
	case max(opt.ResponderResources, opt.InitiatorDepth) > math.MaxUint8:
		return fmt.Errorf("ResponderResources %d, InitiatorDepth %d: %w", opt.ResponderResources, opt.InitiatorDepth, verbs.ErrRange)
	case max(opt.RetryCount, opt.RNRRetryCount) > 7:
		return fmt.Errorf("RetryCount %d, RNRRetryCount %d: %w", opt.RetryCount, opt.RNRRetryCount, verbs.ErrRange)
	case opt.KeepAlive > 0 && opt.SingleThreaded:
		return fmt.Errorf("KeepAlive with SingleThreaded: %w", errors.ErrUnsupported)
	}
	return nil
}

// plan has the checked options of an endpoint, with numbers that the device and the peer accept. It
// is complete before any object is made.
type plan struct {
	Options
	accepting        bool
	typ              verbs.QPType
	resources, depth uint8 // the most READs and atomics in flight, of the peer and of this side
}

// newPlan lets the program adapt its options to the route, and checks them.
func newPlan(opt *Options, space PortSpace, route Route, accepting bool) (p plan, err error) {
	p = plan{Options: *opt, accepting: accepting, typ: verbs.RC}
	if space.datagram() {
		p.typ = verbs.UD
	}
	if p.Prepare != nil {
		err = p.Prepare(route, &p.Options)
	}
	if err == nil {
		err = p.check()
	}
	if p.KeepAlive > 0 {
		if err == nil && p.typ != verbs.RC {
			err = fmt.Errorf("KeepAlive of datagrams: %w", errors.ErrUnsupported)
		}
		p.Cap.MaxSendWR = p.Cap.WithDefaults().MaxSendWR + 1
	}
	return p, err
}

// setDepths sets the most READs and atomics in flight. It refuses a number of the program that the
// device does not support, and lowers the default. The accepting side starts no more than the peer
// serves, and serves no more than the peer starts (IBTA table 106, Responder Resources and
// Initiator Depth; rdma_accept(3)).
func (p *plan) setDepths(attr *verbs.DeviceAttr, device string, request *Event) (err error) {
	limit := func(name string, given, most int, peer uint8) uint8 {
		n := int(optionValue(given, defaultReadDepth))
		if n > most && given != 0 {
			err = fmt.Errorf("%s %d of at most %d on %s: %w", name, given, most, device, verbs.ErrRange)
		}
		if p.accepting {
			most = min(most, int(peer))
		}
		return uint8(min(n, most))
	}
	if !p.accepting {
		request = new(Event)
	}
	p.resources = limit("ResponderResources", p.ResponderResources, attr.MaxQPRDAtomic, request.ResponderResources)
	p.depth = limit("InitiatorDepth", p.InitiatorDepth, attr.MaxQPInitRDAtomic, request.InitiatorDepth)
	return err
}
