package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/uverbs"
)

// side is one end of a run: its objects and its state. The loops of bw.go and lat.go drive
// its queues from one goroutine. Other goroutines only report ends: fail, and readMessages, which
// reads the peer's messages.
type side struct {
	work
	op     operation
	layout layout
	client bool
	ctl    *control

	requested bool // the server knows of the run

	path    cm.Path
	dev     *uverbs.Context
	pd      *uverbs.PD
	channel *uverbs.CompChannel // nil when polling
	sendCQ  *uverbs.CQ
	recvCQ  *uverbs.CQ
	mr      *uverbs.MR
	lanes   []*lane
	// READs and atomics that a QP may answer, and may have in flight: the device's limits.
	responders, initiators int
	objects                cli.Closers

	token uint32
	local []verbs.QPAddr // on UD
	peer  start

	ctx       context.Context // ends with the run
	cancel    context.CancelCauseFunc
	failed    atomic.Bool
	reader    sync.WaitGroup
	started   chan start
	done      chan struct{} // closed when the peer sends no more
	peerDone  atomic.Bool   // done is closed
	sent      uint64        // by the peer; valid once done is closed
	reports   chan report
	count     atomic.Uint64 // messages sent, or received by a side that sends none
	recvCount atomic.Uint64 // messages received by a side that also sends
	waiting   atomic.Bool   // for the peer, with nothing left to do
}

// lane is the state of one QP.
type lane struct {
	number uint64
	qp     *uverbs.QP
	ep     *cm.Endpoint    // nil on UD
	batch  []verbs.SendWR  // the requests that are posted at a time
	credit [1]verbs.SendWR // an empty message
	recvs  []verbs.RecvWR  // the receives of the QP
	spare  int             // receives to post again

	posted, completed uint64
	target            uint64
	unsignaled        int    // posted since the last signaled one
	room              uint64 // how many messages the peer's receives allow to post
	received          uint64
	owed              int // received and not credited yet
	credits           int // in flight to the peer
}

// errMTU reports that a datagram is too long.
var errMTU = errors.New("a datagram is one packet")

// newSide creates all objects except the QPs. The caller must call close, also after an error.
func newSide(ctx context.Context, w work, ctl *control, client bool) (*side, error) {
	s := &side{
		work: w, op: w.operation(), layout: w.layout(), client: client, ctl: ctl, requested: !client,
		started: make(chan start, 1), done: make(chan struct{}), reports: make(chan report, 1),
	}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	context.AfterFunc(s.ctx, s.setFailed)
	return s, s.setUp()
}

func (s *side) setUp() (err error) {
	// The device is that of the control connection.
	if s.path, err = cm.Lookup(s.ctx, s.ctl.local().String()); err != nil {
		return err
	}
	if s.dev, err = cli.Own(s.path.Device.Open())(&s.objects); err != nil {
		return err
	}
	if err := s.supported(); err != nil {
		return err
	}
	attr, err := s.dev.QueryDevice()
	if err != nil {
		return err
	}
	s.responders, s.initiators = min(attr.MaxQPRDAtomic, 255), min(attr.MaxQPInitRDAtomic, 255)
	if s.pd, err = cli.Own(s.dev.AllocPD())(&s.objects); err != nil {
		return err
	}
	if s.Events {
		if s.channel, err = cli.Own(s.dev.CreateCompChannel())(&s.objects); err != nil {
			return err
		}
		// setFailed comes first: a loop that wakes must find the flag set.
		context.AfterFunc(s.ctx, func() { s.setFailed(); s.channel.Wake() })
	}
	cq := uverbs.CQOptions{Channel: s.channel}
	qp := s.cap()
	cq.Depth = s.QPs * int(qp.MaxSendWR)
	if s.sendCQ, err = cli.Own(s.dev.CreateCQ(cq))(&s.objects); err != nil {
		return err
	}
	cq.Depth = s.QPs * int(qp.MaxRecvWR)
	if s.recvCQ, err = cli.Own(s.dev.CreateCQ(cq))(&s.objects); err != nil {
		return err
	}
	access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	if s.op.atomic {
		access |= verbs.AccessRemoteAtomic
	}
	if s.mr, err = cli.Own(s.pd.AllocMR(s.layout.total, access, uverbs.MROptions{}))(&s.objects); err != nil {
		return err
	}
	if !s.op.atomic {
		fillPattern(s.out(), s.client)
	}
	for i := range s.QPs {
		l := &lane{number: uint64(i)}
		l.credit[0] = verbs.SendWR{ID: creditID | l.number, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
		s.lanes = append(s.lanes, l)
	}
	return nil
}

// supported returns an error if the device lacks the operation.
func (s *side) supported() error {
	iwarp := s.path.Device.IWARP()
	lacks := func(what string) error {
		return fmt.Errorf("%s on %s: it has no %s: %w", s.Op, s.path.Device.Name, what, errors.ErrUnsupported)
	}
	switch {
	case s.op.opcode == verbs.OpRDMAWriteImm && iwarp:
		return lacks("RDMA WRITE with immediate")
	case s.op.atomic && s.dev.Probe(uverbs.FeatureAtomics) != nil:
		return lacks("atomics")
	case s.op.datagram && s.dev.Probe(uverbs.FeatureUD) != nil:
		return lacks("UD QPs")
	}
	if s.op.datagram {
		attr, err := s.dev.QueryPort(s.path.Port)
		if err != nil {
			return err
		}
		if mtu := attr.ActiveMTU.Bytes(); s.Size > mtu {
			return fmt.Errorf("size (-s): %d is more than %s has, %d: %w", s.Size, s.path.Device.Name, mtu, errMTU)
		}
	}
	return nil
}

// fail ends the run; the first reason counts.
func (s *side) fail(err error) { s.cancel(err) }

func (s *side) setFailed() { s.failed.Store(true) }

// cause returns the cause of err: the failure of a request may be only a consequence. A peer
// that aborts reports the reason, but its QPs may be destroyed before the report arrives.
func (s *side) cause(err error) error {
	var wc *verbs.WCError
	if s.ctx.Err() == nil && errors.As(err, &wc) {
		s.waiting.Store(true)
		select {
		case <-s.ctx.Done():
		case <-time.After(3 * time.Second): // longer than watch waits
		}
	}
	if cause := context.Cause(s.ctx); cause != nil {
		return cause
	}
	return err
}

// readMessages receives the peer's messages until its report.
func (s *side) readMessages() {
	s.reader.Go(func() {
		for {
			m, err := s.ctl.receive(s.ctx)
			switch {
			case errors.Is(err, io.EOF):
				err = errors.New("peer left")
			case err != nil:
			case m.Start != nil && len(s.started) == 0:
				s.started <- *m.Start
			case m.Done != nil && !s.peerDone.Load():
				s.sent = m.Done.Sent
				s.peerDone.Store(true)
				close(s.done)
				if s.channel != nil {
					s.channel.Wake()
				}
			case m.Report != nil:
				s.reports <- *m.Report
				return
			default:
				err = errProtocol
			}
			if err != nil {
				s.fail(err)
				return
			}
		}
	})
}

// watch ends the run when a connection ends or there is no progress any more. stop ends
// the watch.
func (s *side) watch() (stop func()) {
	ctx, cancel := context.WithCancel(s.ctx)
	var watchers sync.WaitGroup
	for _, l := range s.lanes {
		if l.ep == nil {
			continue
		}
		watchers.Go(func() {
			select {
			case <-l.ep.Done():
				// A reason that the peer sends takes precedence.
				select {
				case <-ctx.Done():
				case <-time.After(2 * time.Second):
					s.fail(fmt.Errorf("data connection: %w", l.ep.Err()))
				}
			case <-ctx.Done():
			}
		})
	}
	watchers.Go(func() {
		total := func() uint64 { return s.count.Load() + s.recvCount.Load() }
		last := total()
		tick := time.NewTicker(s.Timeout)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			now := total()
			if now == last && !s.passive() && !s.waiting.Load() {
				s.fail(fmt.Errorf("nothing moved for %v, after %d messages", s.Timeout, now))
			}
			last = now
		}
	})
	return func() { cancel(); watchers.Wait() }
}

// sends and receives report the part of this side in the test. A passive side has none: the
// peer does all the work.
func (s *side) sends() bool    { return s.client || s.Both || s.answered() }
func (s *side) receives() bool { return s.op.receives && (!s.client || s.Both || s.answered()) }
func (s *side) passive() bool  { return !s.sends() && !s.receives() }

func (s *side) out() []byte { return s.mr.Bytes()[:s.Size] }

// in returns the data that a lane received.
func (s *side) in(i int) []byte {
	return s.mr.Bytes()[s.layout.inOf(i)+s.layout.head:][:s.Size]
}

// newToken returns a token that identifies a run's connections. It is also a Q_Key.
func newToken() uint32 { return rand.Uint32() >> 1 }
