package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/rdmadev"
	"github.com/goverbs/verbs/uverbs"
)

// completionLimit is how long an end waits for a completion: longer than a request is repeated.
const completionLimit = 10 * time.Second

// options are what a scenario needs of the ends. The zero value is RC with small queues.
type options struct {
	typ      verbs.QPType
	cm       bool // connected by the connection manager
	srq      bool
	events   bool
	noRNR    bool         // a message without a receive fails at once
	maxSGL   bool         // requests may have as many SGEs as the device takes
	local    bool         // peers get no access to the memory
	noIWARP  string       // why iWARP does not have it
	extra    verbs.Access // to memory
	memory   int          // bytes; 64 KiB if zero
	features []uverbs.Feature
}

// port is where the QPs are.
type port struct {
	dev    *uverbs.Context
	desc   rdmadev.Device // of dev
	num    int
	gid    verbs.GIDEntry // not on iWARP
	tclass uint8
}

// end is one of the two ends of a scenario. The active one sends, writes and reads.
type end struct {
	*link
	port
	ctx     context.Context // ends the scenario
	iwarp   bool
	objects cli.Closers

	pd      *uverbs.PD
	mr      *uverbs.MR
	channel *uverbs.CompChannel
	sendCQ  *uverbs.CQ
	recvCQ  *uverbs.CQ
	srq     *uverbs.SRQ
	qp      *uverbs.QP
	access  verbs.Access // that a peer may have

	peer message      // where its memory is
	to   verbs.UDAddr // on UD
	seed uint64       // of the data, counted by both ends
	wcs  []verbs.WC   // the last ones
	step string       // of the scenario, for errors
}

const (
	depth  = 16 // of the queues
	inline = 64
	qkey   = 0x11111111
)

// open makes the objects of an end, and connects it.
func (e *end) open(o options) {
	for _, f := range o.features {
		e.must(e.dev.Probe(f))
	}
	if e.iwarp = e.dev.Device().IWARP(); e.iwarp && o.noIWARP != "" {
		e.must(fmt.Errorf("%s: %w", o.noIWARP, errors.ErrUnsupported))
	}
	e.access = verbs.AccessAll
	if e.dev.Probe(uverbs.FeatureAtomics) != nil {
		e.access &^= verbs.AccessRemoteAtomic
	}
	memory := e.access | o.extra
	if o.local {
		memory = verbs.AccessLocalWrite
	}
	attr, err := e.dev.QueryDevice()
	e.must(err)
	limits := verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: inline}
	if o.maxSGL {
		limits.MaxSendSGE, limits.MaxRecvSGE = attr.MaxSGE, attr.MaxSGE
	}
	e.pd = own(e.dev.AllocPD())(e)
	e.mr = e.region(max(o.memory, 64<<10), memory)
	if o.events {
		e.channel = own(e.dev.CreateCompChannel())(e)
	}
	e.sendCQ = own(e.dev.CreateCQ(uverbs.CQOptions{Depth: depth, Channel: e.channel}))(e)
	e.recvCQ = own(e.dev.CreateCQ(uverbs.CQOptions{Depth: depth, Channel: e.channel}))(e)
	if o.srq {
		e.srq = own(e.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: depth, MaxSGE: 2}))(e)
	}
	if e.iwarp || o.cm {
		e.connectByCM(limits)
	} else {
		e.connect(o, limits)
	}
	e.sync() // both can receive
}

// region allocates a memory region.
func (e *end) region(size int, access verbs.Access) *uverbs.MR {
	return own(e.pd.AllocMR(size, access, uverbs.MROptions{}))(e)
}

// connect connects QPs by their addresses.
func (e *end) connect(o options, limits verbs.QPCap) {
	e.qp = own(e.pd.CreateQP(uverbs.QPOptions{Type: o.typ, SendCQ: e.sendCQ, RecvCQ: e.recvCQ, SRQ: e.srq, Cap: limits}))(e)
	local, err := e.qp.AddrOn(e.gid)
	e.must(err)
	attr, err := e.dev.QueryPort(e.num)
	e.must(err)
	e.peer = e.share(message{QP: &local, MTU: attr.ActiveMTU, Addr: e.mr.Addr(), RKey: e.mr.RKey()})
	if e.peer.QP == nil {
		e.must(cli.ErrProtocol)
	}
	if o.typ == verbs.UD {
		e.must(e.qp.StartUD(e.num, qkey))
		path := e.peer.QP.PathFrom(local)
		path.TrafficClass = e.tclass
		ah, err := e.pd.CreateAH(path)
		e.must(err)
		e.objects = slices.Insert(e.objects, len(e.objects)-1, io.Closer(ah)) // closed after the QP, which uses it
		e.to = ah.To(e.peer.QP.QPNum, qkey)
		return
	}
	opt := uverbs.ConnectOptions{Access: e.access, PathMTU: min(attr.ActiveMTU, e.peer.MTU), TrafficClass: e.tclass}
	if o.noRNR {
		opt.RNRRetry = -1
	}
	e.must(e.qp.Connect(local, *e.peer.QP, opt))
}

// connectByCM connects QPs by the connection manager: the active end dials.
func (e *end) connectByCM(limits verbs.QPCap) {
	addrs, err := cm.DeviceAddrs(e.dev.Device())
	if err != nil && !e.iwarp { // as InfiniBand without IPoIB
		err = fmt.Errorf("%w: %w", err, errors.ErrUnsupported)
	}
	e.must(err)
	ctx, cancel := context.WithTimeoutCause(e.ctx, completionLimit, fmt.Errorf("no connection within %v", completionLimit))
	defer cancel()
	opt := cm.Options{PD: e.pd, SendCQ: e.sendCQ, RecvCQ: e.recvCQ, SRQ: e.srq, Cap: limits}
	here := message{Addr: e.mr.Addr(), RKey: e.mr.RKey()}
	var ep *cm.Endpoint
	if e.active {
		e.peer = e.share(here)
		d := cm.Dialer{Options: opt, LocalAddr: netip.AddrPortFrom(addrs[0], 0), TOS: e.tclass}
		ep, err = d.Dial(ctx, e.peer.CM)
	} else {
		l, lerr := cm.Listen(ctx, netip.AddrPortFrom(addrs[0], 0).String())
		e.must(lerr)
		defer l.Close()
		here.CM = l.Addr().String()
		e.peer = e.share(here)
		var r *cm.Request
		if r, err = l.Accept(ctx); err == nil {
			ep, err = r.Accept(ctx, opt)
		}
	}
	if err != nil {
		err = cli.Cause(ctx, err)
	}
	e.qp = own(ep, err)(e).QP
}

// own ends the scenario if a constructor has failed, and else lets the end close what it has made.
func own[T io.Closer](v T, err error) func(e *end) T {
	return func(e *end) T {
		e.must(err)
		e.objects = append(e.objects, v)
		return v
	}
}

// failure is what the methods of a scenario panic with, to end it on this end.
type failure struct{ error }

// must ends the scenario if there is an error.
func (e *end) must(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// run runs a scenario on this end, and returns why it has ended early.
func (e *end) run(s *scenario) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			if err = p.error; e.step != "" && !errors.Is(err, errEnded) {
				err = fmt.Errorf("%s: %w", e.step, err)
			}
		default:
			panic(p)
		}
	}()
	e.open(s.options)
	s.run(e)
	return nil
}

// share is swap in a scenario.
func (e *end) share(m message) message {
	peer, err := e.swap(m)
	e.must(err)
	return peer
}

// sync waits until the other end has come to the same point.
func (e *end) sync() { e.share(message{}) }

// newKey tells the active end a key of the passive one, which key is there.
func (e *end) newKey(key uint32) uint32 {
	if m := e.share(message{RKey: key}); e.active {
		return m.RKey
	}
	return key
}

// poll waits for a completion. Its error is that of the completion, if it has one.
func (e *end) poll(cq *uverbs.CQ) (verbs.WC, error) {
	var wc [1]verbs.WC
	for until := time.Now().Add(completionLimit); cq.Poll(wc[:]) == 0; {
		switch {
		case e.ctx.Err() != nil:
			return wc[0], context.Cause(e.ctx)
		case time.Now().After(until):
			return wc[0], fmt.Errorf("no completion within %v", completionLimit)
		}
		time.Sleep(10 * time.Microsecond)
	}
	e.wcs = append(e.wcs[max(0, len(e.wcs)-3):], wc[0])
	return wc[0], wc[0].Err()
}

// wait waits for a completion that has no error.
func (e *end) wait(cq *uverbs.CQ) verbs.WC {
	wc, err := e.poll(cq)
	e.must(err)
	return wc
}

// idle ends the scenario if there is a completion, which nothing accounts for.
func (e *end) idle(cq *uverbs.CQ) {
	var wc [1]verbs.WC
	if cq.Poll(wc[:]) > 0 {
		e.wcs = append(e.wcs[max(0, len(e.wcs)-3):], wc[0])
		e.must(errors.New("there is a completion of a request that has none"))
	}
}

// send posts requests in one call.
func (e *end) send(wrs ...verbs.SendWR) {
	_, err := e.qp.PostSend(wrs...)
	e.must(err)
}

// post posts requests in one call, of which the last is signaled, and waits for its completion.
func (e *end) post(wrs ...verbs.SendWR) {
	wrs[len(wrs)-1].Flags |= verbs.SendSignaled
	e.send(wrs...)
	e.wait(e.sendCQ)
}

// recv posts a receive for the pieces of memory.
func (e *end) recv(id uint64, sgl ...verbs.SGE) {
	wr := verbs.RecvWR{ID: id, SGL: sgl}
	var err error
	if e.srq != nil {
		_, err = e.srq.PostRecv(wr)
	} else {
		_, err = e.qp.PostRecv(wr)
	}
	e.must(err)
}

// received waits for a receive of n bytes.
func (e *end) received(id uint64, n int) verbs.WC {
	wc := e.wait(e.recvCQ)
	if wc.ID != id || int(wc.ByteLen) != n {
		e.must(fmt.Errorf("receive %d of %d bytes has completed, not %d of %d", wc.ID, wc.ByteLen, id, n))
	}
	return wc
}

// scatter returns n bytes of memory in so many pieces, with gaps between them.
func (e *end) scatter(n, pieces int) (sgl []verbs.SGE) {
	for at := 0; n > 0; pieces-- {
		part := n / pieces
		sgl = append(sgl, e.mr.SGE(at, part))
		n, at = n-part, at+part+64
	}
	return sgl
}

// data calls f with each byte of the pieces, and what the current message has there.
func (e *end) data(sgl []verbs.SGE, f func(at int, b *byte, want byte)) {
	r, at := rand.New(rand.NewPCG(e.seed, 0)), 0
	for _, s := range sgl {
		mem := e.mr.Bytes()[s.Addr-e.mr.Addr():][:s.Length]
		for i := range mem {
			f(at, &mem[i], byte(r.Uint32()))
			at++
		}
	}
}

// fill makes the data of the next message.
func (e *end) fill(sgl []verbs.SGE) {
	e.seed++
	e.data(sgl, func(_ int, b *byte, want byte) { *b = want })
}

// compare checks the data of the next message.
func (e *end) compare(sgl []verbs.SGE) {
	e.seed++
	bad, first := 0, 0
	e.data(sgl, func(at int, b *byte, want byte) {
		if *b != want {
			if bad++; bad == 1 {
				first = at
			}
		}
	})
	if bad > 0 {
		e.must(fmt.Errorf("damaged data: %d bytes differ, the first at %d", bad, first))
	}
}

// remote returns a request for the peer's memory.
func (e *end) remote(op verbs.Opcode, key uint32, sgl ...verbs.SGE) verbs.SendWR {
	return verbs.SendWR{Opcode: op, RemoteAddr: e.peer.Addr, RKey: key, SGL: sgl}
}

// message sends n bytes from the active end, which change may alter, in pieces, and checks them at
// the other, whose completion it returns.
func (e *end) message(n, pieces int, change func(*verbs.SendWR)) (wc verbs.WC) {
	sgl := e.scatter(n, pieces)
	if e.active {
		e.fill(sgl)
		e.sync()
		wr := verbs.SendWR{Opcode: verbs.OpSend, SGL: sgl, To: e.to}
		if change != nil {
			change(&wr)
		}
		e.post(wr)
		return wc
	}
	e.recv(1, sgl...)
	e.sync()
	wc = e.received(1, n)
	e.compare(sgl)
	return wc
}

// write writes n bytes with a key, and then sends an empty message: when it has come, the data has
// come, also on iWARP, where a write completes when it has been sent.
func (e *end) write(key uint32, n int) {
	sgl := e.scatter(n, 1)
	if e.active {
		e.fill(sgl)
		e.sync()
		e.post(e.remote(verbs.OpRDMAWrite, key, sgl...), verbs.SendWR{Opcode: verbs.OpSend})
		return
	}
	e.recv(2)
	e.sync()
	e.received(2, 0)
	e.compare(sgl)
}

// refused posts a request that the peer has to refuse, and another one behind it. The QP is in the
// error state then, and so is the peer's, whose receive is flushed.
func (e *end) refused(wr verbs.SendWR) {
	if !e.active {
		e.recv(3)
		e.sync()
		e.fails(e.recvCQ, "the receive", verbs.WCFlushErr)
		return
	}
	e.sync()
	wr.Flags |= verbs.SendSignaled
	wrs := []verbs.SendWR{wr, {Opcode: verbs.OpSend, Flags: verbs.SendSignaled}}
	want, together := []verbs.WCStatus{verbs.WCRemAccessErr}, 2
	if e.iwarp { // where the peer may take the second before it refuses the first, and its Terminate ends the QP
		want, together = append(want, verbs.WCGeneralErr, verbs.WCFlushErr, verbs.WCLocQPOpErr), 1
	}
	e.send(wrs[:together]...)
	e.fails(e.sendCQ, "the request", want...)
	e.send(wrs[together:]...)
	e.fails(e.sendCQ, "the request behind it", verbs.WCFlushErr)
}

// fails waits for a completion with one of the statuses.
func (e *end) fails(cq *uverbs.CQ, what string, want ...verbs.WCStatus) {
	_, err := e.poll(cq)
	var wc *verbs.WCError
	switch {
	case errors.As(err, &wc) && slices.Contains(want, wc.Status):
	case err == nil:
		e.must(fmt.Errorf("%s succeeded; its status should be %q", what, want[0].String()))
	default:
		e.must(fmt.Errorf("%s: %w; its status should be %q", what, err, want[0].String()))
	}
}

// bind binds a window of a type to the passive end's memory, and tells the active end its key.
func (e *end) bind(typ verbs.MWType, n int) (mw *uverbs.MW, key uint32) {
	if !e.active {
		mw = own(e.pd.AllocMW(typ))(e)
		e.rebind(mw, uverbs.BindOptions{MR: e.mr, Length: n, Access: verbs.AccessRemoteWrite | verbs.AccessRemoteRead})
		key = mw.RKey()
	}
	return mw, e.newKey(key)
}

func (e *end) rebind(mw *uverbs.MW, o uverbs.BindOptions) {
	o.Flags = verbs.SendSignaled
	_, err := e.qp.BindMW(mw, o)
	e.must(err)
	e.wait(e.sendCQ)
}
