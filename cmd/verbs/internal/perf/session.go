package perf

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/uverbs"
)

// session is this side of a run: its objects, and the addresses of the peer's. One goroutine drives
// the queues; others only count, and end the run.
type session struct {
	work
	*remote
	op     operation
	client bool

	path      cm.Path
	dev       *uverbs.Context
	opt       cm.Options // of each connection: the PD, both CQs, and the device's limits
	mr        *uverbs.MR
	queues    []*queue
	pkeyIndex int // of the QPs, if work.PKey is set
	objects   cli.Closers

	token uint32
	local []verbs.QPAddr // on UD
	peer  start

	count     atomic.Uint64 // messages sent, or received by a side that sends none
	recvCount atomic.Uint64 // messages received by a side that also sends
}

// queue is the state of one QP.
type queue struct {
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

// newSession creates all objects except the QPs. The caller must call close, also after an error.
func newSession(ctx context.Context, w work, ctl *control, client bool) (*session, error) {
	s := &session{work: w, remote: newRemote(ctx, ctl), op: w.operation(), client: client}
	s.requested = !client
	return s, s.setUp()
}

func (s *session) setUp() (err error) {
	// The control connection decides the device.
	if s.path, err = cm.Lookup(s.ctx, s.ctl.local().String()); err != nil {
		return err
	}
	if s.dev, err = cli.Own(s.path.Device.Open())(&s.objects); err != nil {
		return err
	}
	if err := s.supported(); err != nil {
		return err
	}
	if err := s.choosePKey(); err != nil {
		return err
	}
	attr, err := s.dev.QueryDevice()
	if err != nil {
		return err
	}
	if s.opt.PD, err = cli.Own(s.dev.AllocPD())(&s.objects); err != nil {
		return err
	}
	s.opt.Cap = s.cap()
	s.opt.ResponderResources, s.opt.InitiatorDepth = min(attr.MaxQPRDAtomic, 255), min(attr.MaxQPInitRDAtomic, 255)
	cq := uverbs.CQOptions{Depth: s.QPs * s.opt.Cap.MaxSendWR}
	if s.Events {
		if cq.Channel, err = cli.Own(s.dev.CreateCompChannel())(&s.objects); err != nil {
			return err
		}
	}
	if s.opt.SendCQ, err = cli.Own(s.dev.CreateCQ(cq))(&s.objects); err != nil {
		return err
	}
	cq.Depth = s.QPs * s.opt.Cap.MaxRecvWR
	if s.opt.RecvCQ, err = cli.Own(s.dev.CreateCQ(cq))(&s.objects); err != nil {
		return err
	}
	if s.Events {
		s.wakeBy(s.opt.RecvCQ)
	}
	access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	if s.op.atomic {
		access |= verbs.AccessRemoteAtomic
	}
	if s.mr, err = cli.Own(s.opt.PD.AllocMR(s.layout().total, access, uverbs.MROptions{}))(&s.objects); err != nil {
		return err
	}
	if !s.op.atomic {
		copy(s.out(), pattern(s.Size, s.client))
	}
	for i := range s.QPs {
		q := &queue{number: uint64(i)}
		q.credit[0] = verbs.SendWR{ID: creditID | q.number, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
		s.queues = append(s.queues, q)
	}
	return nil
}

// supported returns an error if the device lacks the operation.
func (s *session) supported() error {
	lacks := func(what string) error {
		return fmt.Errorf("%s on %s: it has no %s: %w", s.Op, s.path.Device.Name, what, errors.ErrUnsupported)
	}
	switch {
	case s.op.opcode == verbs.OpRDMAWriteImm && s.dev.Probe(uverbs.FeatureImmediates) != nil:
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

// choosePKey finds the index of the run's P_Key in this side's table. The client's user gives the
// index, and the server gets the key: tables list the same partitions in different orders.
func (s *session) choosePKey() error {
	if s.PKeyIndex == nil && s.PKey == 0 { // 0 is no P_Key, but an unused entry (IBTA 10.9.1)
		return nil
	}
	keys, err := s.dev.PKeys(s.path.Port)
	if err != nil {
		return err
	}
	where := fmt.Sprintf("port %d of %s", s.path.Port, s.path.Device.Name)
	if len(keys) == 0 {
		return fmt.Errorf("%s has no P_Keys: %w", where, errors.ErrUnsupported)
	}
	if s.PKeyIndex == nil {
		if s.pkeyIndex = partition(keys, s.PKey); s.pkeyIndex < 0 {
			return fmt.Errorf("%s is not in the partition of P_Key %#04x: %w", where, s.PKey, verbs.ErrRange)
		}
		return nil
	}
	if s.pkeyIndex = *s.PKeyIndex; s.pkeyIndex >= len(keys) {
		return fmt.Errorf("P_Key index (--pkey-index): %d is not in 0..%d, the table of %s: %w", s.pkeyIndex, len(keys)-1, where, verbs.ErrRange)
	}
	if s.PKey = keys[s.pkeyIndex]; s.PKey&^fullMember == 0 {
		return fmt.Errorf("P_Key index (--pkey-index): entry %d of %s is unused: %w", s.pkeyIndex, where, verbs.ErrRange)
	}
	return nil
}

// fullMember is the bit of a P_Key that tells full members of a partition from limited ones, which
// reach full members only (IBTA 10.9.1.1).
const fullMember = 1 << 15

// partition returns the index of the key of a peer's partition, or -1: better a full member's, which
// reaches all.
func partition(keys []uint16, peer uint16) int {
	if i := slices.Index(keys, peer|fullMember); i >= 0 {
		return i
	}
	return slices.Index(keys, peer&^fullMember)
}

// watch ends the run when a connection ends or there is no progress any more. stop ends
// the watch.
func (s *session) watch() (stop func()) {
	ctx, cancel := context.WithCancel(s.ctx)
	var watchers sync.WaitGroup
	for _, q := range s.queues {
		if q.ep == nil {
			continue
		}
		watchers.Go(func() {
			select {
			case <-q.ep.Done():
				// A reason that the peer sends takes precedence.
				select {
				case <-ctx.Done():
				case <-time.After(2 * time.Second):
					s.fail(fmt.Errorf("data connection: %w", q.ep.Err()))
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
			if now == last && !s.waiting.Load() {
				s.fail(fmt.Errorf("nothing moved for %v, after %d messages", s.Timeout, now))
			}
			last = now
		}
	})
	return func() { cancel(); watchers.Wait() }
}

// sends and receives report the part of this side in the test.
func (s *session) sends() bool    { return s.client || s.Both || s.answered() }
func (s *session) receives() bool { return s.op.receives && (!s.client || s.Both || s.answered()) }

func (s *session) out() []byte { return s.mr.Bytes()[:s.Size] }

// in returns the data that a queue received.
func (s *session) in(i int) []byte {
	return s.mr.Bytes()[s.layout().data(i):][:s.Size]
}

func (s *session) posted() (n uint64) {
	for _, q := range s.queues {
		n += q.posted
	}
	return n
}

func (s *session) received() (n uint64) {
	for _, q := range s.queues {
		n += q.received
	}
	return n
}

// newToken returns a token that identifies a run's connections. It is also a Q_Key.
func newToken() uint32 { return rand.Uint32() >> 1 }
