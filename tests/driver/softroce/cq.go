package softroce

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// completionQueue is a CQ.
type completionQueue struct {
	provider.Completions
	ring
	dev    *provider.Device
	notify provider.Notify
}

// look sets where the next completion will be seen: the CQ is empty as long as the kernel's index
// is ours.
func (q *completionQueue) look() {
	q.Word, q.Mask, q.None = mmap.Word(mmap.Bytes(&q.header.ProducerIndex), 0), q.mask, q.index
}

// Take implements [provider.CompletionQueue].
func (q *completionQueue) Take(wcs []verbs.WC) (n int) {
	for end := q.producer(); n < len(wcs) && q.index != end; n++ {
		c := &mmap.Slice[abi.IbUverbsWc](q.slot(q.index), 0, 1)[0]
		wcs[n] = verbs.WC{
			ID: c.WrId, Status: verbs.WCStatus(c.Status), Opcode: verbs.WCOpcode(c.Opcode), VendorErr: c.VendorErr,
			ByteLen: c.ByteLen, QPNum: c.QpNum, SrcQP: c.SrcQp, Flags: verbs.WCFlags(c.WcFlags) & verbs.WCGRH,
			PKeyIndex: c.PkeyIndex, SLID: c.Slid, SL: c.Sl, PathBits: c.DlidPathBits, Port: c.PortNum,
		}
		if verbs.WCFlags(c.WcFlags)&verbs.WCWithImm != 0 {
			provider.SetImm(&wcs[n], binary.BigEndian.Uint32(mmap.Bytes(c.Ex.ImmData())))
		}
		q.index = q.advance(q.index)
	}
	q.consume()
	q.look()
	q.Unlock()
	return n
}

// Arm implements [provider.CompletionQueue].
func (q *completionQueue) Arm(solicitedOnly bool) error {
	q.Lock()
	defer q.Unlock()
	if q.Closed {
		return q.Err()
	}
	return q.notify.Arm(solicitedOnly)
}

// Resize implements [provider.Resizer].
func (q *completionQueue) Resize(size int, resize func(int, provider.UHW) error) error {
	q.Lock()
	defer q.Unlock()
	if q.Closed {
		return q.Err()
	}
	var resp abi.RxeResizeCqResp
	if err := resize(size, provider.UHW{Out: mmap.Bytes(&resp)}); err != nil {
		return err
	}
	if err := q.replace(q.dev, &resp.Mi, wcSize); err != nil {
		q.Fail(err)
		return q.Err()
	}
	q.index = q.consumer()
	q.look()
	return nil
}

// Recycle implements [provider.CompletionQueue].
func (q *completionQueue) Recycle() provider.CompletionQueue {
	q.Stop(true)
	next := &completionQueue{dev: q.dev, ring: q.ring, notify: q.notify}
	next.index = next.producer()
	next.consume()
	next.look()
	return next
}

// events counts the completion events of all CQs.
var events atomic.Int64

// Events returns how many completion events were counted.
func Events() int { return int(events.Load()) }

// CountEvent implements [provider.EventCounter]. rxe does not need it.
func (q *completionQueue) CountEvent() { events.Add(1) }

// Cap implements [provider.CompletionQueue].
func (q *completionQueue) Cap() int {
	q.Lock()
	defer q.Unlock()
	return int(q.mask)
}

// Release implements [provider.Queue].
func (q *completionQueue) Release() {
	q.Stop(true)
	q.notify.Close()
	live.Add(-1)
	q.region.Close()
}
