package rsock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// packetQueue is a UD QP of a PacketConn. Its memory consists of slots for receives, each with room
// for a GRH and a message, and slots for sends. The device always writes the 40 bytes of the GRH
// before a message (Annex A17.4.5.2).
type packetQueue struct {
	c          *PacketConn
	local      netip.Addr // the address for peers
	port       int        // of the device
	header     []byte     // of the messages that it sends
	zone       string     // of the interface, for link-local peers
	maxPayload int        // of a datagram by RDMA
	maxUDP     int        // of one by UDP

	ctx     context.Context // ends when the queue has failed or the PacketConn is closed
	fail    context.CancelCauseFunc
	release []func() error // in the order of creation; called in reverse
	dev     *uverbs.Context
	pd      *uverbs.PD
	sendCQ  *uverbs.CQ
	recvCQ  *uverbs.CQ
	mr      *uverbs.MR
	qp      *uverbs.QP

	using  sync.RWMutex  // held for reading while the objects are used
	closed bool          // guarded by using
	done   chan struct{} // closed when the peers of the queue are forgotten

	sending sync.Mutex
	free    []int         // slots of sends
	sends   []*packetPeer // the receiver of each slot's request
}

const recvSlot = verbs.GRHSize + maxMessage

// queue returns the queue of a path's local address, and makes it if there is none. If the address has moved to
// another device or port, it ends the queue there, and returns it with errQueueClosed.
func (c *PacketConn) queue(path *cm.Path) (*packetQueue, error) {
	c.creating.Lock()
	defer c.creating.Unlock()
	c.mu.Lock()
	q := c.queues[path.Local]
	c.mu.Unlock()
	if c.ctx.Err() != nil {
		return nil, net.ErrClosed
	}
	if q != nil {
		if q.port != path.Port || q.dev.Device().Node != path.Device.Node {
			q.fail(fmt.Errorf("its address has moved to port %d of %s", path.Port, path.Device.Name))
			return q, errQueueClosed
		}
		return q, nil
	}
	q = &packetQueue{c: c, local: path.Local, port: path.Port, zone: path.Local.Zone(), done: make(chan struct{})}
	q.ctx, q.fail = context.WithCancelCause(c.ctx)
	if err := q.open(path); err != nil {
		q.fail(err) // or q.ctx would remain registered with c.ctx
		q.close()
		return nil, err
	}
	c.mu.Lock()
	c.queues[path.Local] = q
	c.mu.Unlock()
	c.wg.Go(q.receive)
	return q, nil
}

// open makes the objects of a queue, and posts its receives.
func (q *packetQueue) open(path *cm.Path) (err error) {
	if path.Device.IWARP() {
		return fmt.Errorf("%s is an iWARP device, which has no datagrams: %w", path.Device.Name, errors.ErrUnsupported)
	}
	if q.dev, err = own(path.Device.Open())(q); err != nil {
		return err
	}
	port, err := q.dev.QueryPort(path.Port)
	if err != nil {
		return err
	}
	q.header = appendHeader(nil, netip.AddrPortFrom(q.local, q.c.local.Port()))
	q.maxUDP = maxMessage - len(appendUDPHeader(nil, q.local, udpData, 0))
	q.maxPayload = min(q.maxUDP, port.ActiveMTU.Bytes()-len(q.header))
	if q.pd, err = own(q.dev.AllocPD())(q); err != nil {
		return err
	}
	channel, err := own(q.dev.CreateCompChannel())(q)
	if err != nil {
		return err
	}
	recvs, sends := q.c.opt.RecvQueue, q.c.opt.SendQueue
	for cq, depth := range map[**uverbs.CQ]int{&q.recvCQ: recvs, &q.sendCQ: sends} {
		if *cq, err = own(q.dev.CreateCQ(uverbs.CQOptions{Depth: depth, Channel: channel}))(q); err != nil {
			return err
		}
	}
	if q.mr, err = own(q.pd.AllocMR(recvs*recvSlot+sends*maxMessage, verbs.AccessLocalWrite, uverbs.MROptions{}))(q); err != nil {
		return err
	}
	q.release = append(q.release, q.forgetPeers) // after the QP has been closed, which may use their handles
	q.qp, err = own(q.pd.CreateQP(uverbs.QPOptions{
		Type: verbs.UD, SendCQ: q.sendCQ, RecvCQ: q.recvCQ,
		Cap: verbs.QPCap{MaxSendWR: sends, MaxRecvWR: recvs, MaxSendSGE: 1, MaxRecvSGE: 1},
	}))(q)
	if err != nil {
		return err
	}
	if err := q.qp.StartUD(path.Port, packetQKey); err != nil {
		return err
	}
	for i := range recvs {
		if err := q.post(i); err != nil {
			return err
		}
	}
	q.sends = make([]*packetPeer, sends)
	for i := range sends {
		q.free = append(q.free, i)
		copy(q.mr.Bytes()[q.sendSlot(i):], q.header)
	}
	return nil
}

// own returns a function that makes a queue close an object in the end.
func own[T interface{ Close() error }](v T, err error) func(*packetQueue) (T, error) {
	return func(q *packetQueue) (T, error) {
		if err == nil {
			q.release = append(q.release, v.Close)
		}
		return v, err
	}
}

func (q *packetQueue) sendSlot(slot int) int { return q.c.opt.RecvQueue*recvSlot + slot*maxMessage }

func (q *packetQueue) post(slot int) error {
	_, err := q.qp.PostRecv(verbs.RecvWR{ID: uint64(slot), SGL: []verbs.SGE{q.mr.SGE(slot*recvSlot, recvSlot)}})
	return err
}

// receive passes on datagrams until the queue fails or the PacketConn is closed, and closes the
// queue.
func (q *packetQueue) receive() {
	var wcs [64]verbs.WC
	for {
		n, err := q.recvCQ.PollWait(q.ctx, wcs[:])
		for i := 0; i < n && err == nil; i++ {
			err = q.arrived(&wcs[i])
		}
		if err != nil {
			q.fail(err)
			break
		}
	}
	q.c.mu.Lock()
	delete(q.c.queues, q.local)
	q.c.mu.Unlock()
	if err := context.Cause(q.ctx); err != net.ErrClosed {
		q.c.log.Warn("queue pair for datagrams failed", "local", q.local, "err", err)
	}
	q.close()
}

func (q *packetQueue) close() {
	defer close(q.done)
	q.using.Lock()
	defer q.using.Unlock()
	q.closed = true
	for _, f := range slices.Backward(q.release) {
		if err := f(); err != nil {
			q.c.log.Warn("queue pair for datagrams cannot be closed", "local", q.local, "err", err)
		}
	}
}

// forgetPeers removes the peers that the queue leads to.
func (q *packetQueue) forgetPeers() (err error) {
	q.c.mu.Lock()
	defer q.c.mu.Unlock()
	for addr, p := range q.c.peers {
		if p.isResolved() && p.queue == q {
			delete(q.c.peers, addr)
			err = errors.Join(err, p.ah.Close())
		}
	}
	return err
}

func (q *packetQueue) arrived(wc *verbs.WC) error {
	if err := wc.Err(); err != nil {
		return err
	}
	slot := int(wc.ID)
	from, data, ok := parseHeader(q.mr.Bytes()[slot*recvSlot:][verbs.GRHSize:max(wc.ByteLen, verbs.GRHSize)])
	if ok {
		if a := from.Addr(); a.IsLinkLocalUnicast() && a.Is6() { // the header has no zone
			from = netip.AddrPortFrom(a.WithZone(q.zone), from.Port())
		}
		q.c.hear(from, wc.SrcQP)
		select {
		case q.c.incoming <- packet{from, data, q, slot}:
			return nil
		default: // the queue is full
		}
	}
	return q.post(slot)
}

// take copies a datagram to b and posts its slot again. It returns false if the memory is gone.
func (q *packetQueue) take(p packet, b []byte) (n int, ok bool) {
	q.using.RLock()
	defer q.using.RUnlock()
	if q.closed {
		return 0, false
	}
	n = copy(b, p.data)
	if err := q.post(p.slot); err != nil {
		q.fail(err)
	}
	return n, true
}

// errQueueClosed is the error of a queue that has failed. Another takes its place.
var errQueueClosed = errors.New("queue pair has failed")

// send sends a message to a peer that the caller uses, and returns when the device has it.
func (q *packetQueue) send(data []byte, to *packetPeer, qpn uint32) error {
	q.using.RLock()
	defer q.using.RUnlock()
	q.sending.Lock()
	defer q.sending.Unlock()
	if q.closed || q.ctx.Err() != nil {
		return errQueueClosed
	}
	if err := q.reclaim(); err != nil {
		return err
	}
	slot := q.free[len(q.free)-1]
	q.free = q.free[:len(q.free)-1]
	q.sends[slot] = to
	to.users.Add(1)
	at := q.sendSlot(slot)
	size := copy(q.mr.Bytes()[at+len(q.header):], data)
	_, err := q.qp.PostSend(verbs.SendWR{
		ID: uint64(slot), Opcode: verbs.OpSend, Flags: verbs.SendSignaled, To: to.ah.To(qpn, packetQKey),
		SGL: []verbs.SGE{q.mr.SGE(at, len(q.header)+size)},
	})
	if err != nil {
		q.fail(err)
	}
	return err
}

// reap frees the slots of completed sends. The caller holds sending.
func (q *packetQueue) reap() {
	var wcs [16]verbs.WC
	for n := len(wcs); n == len(wcs); {
		n = q.sendCQ.Poll(wcs[:])
		q.completed(wcs[:n])
	}
}

// completed frees the slots of sends. The caller holds sending.
func (q *packetQueue) completed(wcs []verbs.WC) {
	for i := range wcs {
		if err := wcs[i].Err(); err != nil {
			q.fail(err)
			return
		}
		slot := int(wcs[i].ID)
		q.sends[slot].users.Add(-1)
		q.free = append(q.free, slot)
	}
}

// reclaim frees the slots of completed sends, and waits until there is one. It fails with
// [context.DeadlineExceeded] at the write deadline, and with errQueueClosed if the queue has
// failed. The caller holds sending.
func (q *packetQueue) reclaim() error {
	q.reap()
	for len(q.free) == 0 && q.ctx.Err() == nil {
		var wcs [16]verbs.WC
		n, err := q.await(wcs[:])
		if err == context.DeadlineExceeded {
			return err
		}
		if err != nil {
			q.fail(err)
		}
		q.completed(wcs[:n])
	}
	if q.ctx.Err() != nil {
		return errQueueClosed
	}
	return nil
}

// await waits for completions of sends until the queue fails or the write deadline has passed.
func (q *packetQueue) await(wcs []verbs.WC) (n int, err error) {
	for {
		limit := q.c.write.current()
		ctx, cancel := context.WithCancel(limit)
		stop := context.AfterFunc(q.ctx, cancel)
		n, err = q.sendCQ.PollWait(ctx, wcs)
		stop()
		cancel()
		switch {
		case err == nil, q.ctx.Err() != nil, limit.Err() == nil:
			return n, err
		case limit.Err() == context.DeadlineExceeded:
			return 0, limit.Err()
		}
		// The deadline was changed.
	}
}
