package engine

import (
	"net/netip"
	"sync"

	"github.com/goverbs/verbs/internal/roce"
)

// packet is a packet for a QP, received from the network or from the device itself. In the
// latter case it has its own memory.
type packet struct {
	roce.Packet
	src, dst netip.Addr
	tos      uint8
	id       uint16
	buf      []byte // memory of the payload, if the packet has its own
}

// work is a packet for a QP of the device. Without a packet the QP resumes; without a QP the packet
// is for QP 1, or for a target of DC.
type work struct {
	qp  *QP
	pkt *packet
}

// workQueue is the queue of a device's own packets. One goroutine at a time processes it.
type workQueue struct {
	mu      sync.Mutex
	items   []work
	spare   []work // memory for the next items
	running bool
	count   workCount
}

type workCount struct{ pushed, handled uint64 }

// push adds work of a QP. UC and UD requests complete when their packets are in the queue, so
// nothing else limits them: a full queue drops their packets, as a network interface does. The
// window limits RC.
func (d *Device) push(list []work) {
	q := &d.work
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items)+len(list) <= localQueue {
		q.items = append(q.items, list...)
		q.count.pushed += uint64(len(list))
		return
	}
	for _, w := range list {
		if w.pkt != nil && w.qp != nil && len(q.items) >= localQueue && w.pkt.Opcode.Transport() != roce.RC {
			d.counters.add(sendErrors, 1)
			d.putPacket(w.pkt)
			continue
		}
		q.items = append(q.items, w)
		q.count.pushed++
	}
}

// counts returns how many items have been added and processed.
func (q *workQueue) counts() workCount {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.count
}

// take returns the items and makes the caller the one that processes them. It returns none
// if there are none or if another goroutine processes the queue.
func (q *workQueue) take() []work {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.running || len(q.items) == 0 {
		return nil
	}
	q.running = true
	items := q.items
	q.items, q.spare = q.spare, nil
	return items
}

// done ends processing, and reports whether more items have been added.
func (q *workQueue) done(items []work) bool {
	clear(items)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running = false
	q.count.handled += uint64(len(items))
	q.spare = items[:0]
	return len(q.items) > 0
}

// drain processes the work queue. After drainWork items it leaves the rest to the worker.
func (d *Device) drain() {
	for left := drainWork; ; {
		items := d.work.take()
		if items == nil {
			return
		}
		for rest := items; len(rest) > 0; {
			rest = rest[d.processQP(rest):]
		}
		left -= len(items)
		if more := d.work.done(items); more && left <= 0 {
			d.timers.signal()
			return
		}
	}
}

// processQP processes the first items, which are for one QP, and returns their number.
func (d *Device) processQP(items []work) int {
	qp := items[0].qp
	if qp == nil {
		if t := d.targets.get(items[0].pkt.DestQP); t != nil {
			t.receive(items[0].pkt)
		} else {
			d.receiveMAD(items[0].pkt)
		}
		d.putPacket(items[0].pkt)
		return 1
	}
	qp.lock()
	n := 0
	for ; n < len(items) && items[n].qp == qp; n++ {
		if pkt := items[n].pkt; pkt != nil {
			qp.handle(pkt)
			d.putPacket(pkt)
		} else {
			qp.resume()
		}
	}
	qp.finish()
	qp.unlock()
	return n
}

func (d *Device) getPacket(n int) *packet {
	p := d.packets.Get().(*packet)
	if cap(p.buf) < n {
		p.buf = make([]byte, max(n, 256))
	}
	p.buf = p.buf[:n]
	return p
}

func (d *Device) putPacket(p *packet) {
	p.Payload = nil
	d.packets.Put(p)
}
