//go:build linux

package connectx

import (
	"bytes"
	"sync"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/lab/vfiouser"
)

var eqCommands = map[uint16]func(*eqTable, *call) ifc.Status{
	ifc.OpCreateEq:  (*eqTable).create,
	ifc.OpDestroyEq: drop((*eqTable).table, ifc.DestroyEqInEqNumber, (*eq).close),
	ifc.OpQueryEq:   on((*eqTable).table, ifc.QueryEqInEqNumber, (*eq).query),
}

// eq is an event queue. An event is an entry of 64 bytes in a ring (struct mlx5_eqe), which the driver
// knows as new by its owner bit, and an interrupt.
type eq struct {
	num     uint32
	uar     uint32 // where it takes doorbells
	vector  int
	mask    [4]uint64 // types of asynchronous events that it gets
	context []byte    // struct eqc

	mu      sync.Mutex
	view    *vfiouser.View // nil when it has been destroyed
	logSize int
	pi, ci  uint32
}

const (
	eqeSize = 64
	vectors = 8 // of MSI-X
)

// eqTable has the adapter's event queues.
type eqTable struct {
	env  *env
	caps *capabilities
	uars *objects[struct{}]
	objects[*eq]
}

func (t *eqTable) create(c *call) ifc.Status {
	ctx := ifc.CreateEqInEqContextEntry.At(c.in)
	q := &eq{uar: ifc.EqcUarPage.U32(ctx), vector: ifc.EqcIntr.Int(ctx), logSize: ifc.EqcLogEqSize.Int(ctx), context: bytes.Clone(ctx)}
	for i := range q.mask {
		q.mask[i] = be.Uint64(ifc.CreateEqInEventBitmask.At(c.in)[i*8:])
	}
	shift := 12 + ifc.EqcLogPageSize.Int(ctx)
	// mlx5_core's create_map_eq sets no offset.
	if q.vector >= vectors || q.logSize > t.caps.int(ifc.CapGeneral, ifc.CmdHcaCapLogMaxEqSz) || ifc.EqcPageOffset.Is(ctx) {
		return ifc.StatusBadParamErr
	}
	if !t.uars.has(q.uar) {
		return ifc.StatusBadResErr
	}
	size := eqeSize << q.logSize
	var st ifc.Status
	if q.view, st = t.env.pages(ifc.CreateEqInPas.At(c.in), (size+1<<shift-1)>>shift, shift); st != ifc.StatusOk {
		return st
	}
	if q.num, st = t.give(q, 1, maxEQs, c, ifc.CreateEqOutEqNumber); st != ifc.StatusOk {
		q.view.Close()
	}
	return st
}

func (q *eq) query(c *call) ifc.Status {
	q.mu.Lock()
	defer q.mu.Unlock()
	ctx := ifc.QueryEqOutEqContextEntry.At(c.out)
	copy(ctx, q.context)
	ifc.EqcConsumerCounter.Set(ctx, uint64(q.ci))
	ifc.EqcProducerCounter.Set(ctx, uint64(q.pi))
	return ifc.StatusOk
}

func (q *eq) close() ifc.Status {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.view != nil {
		q.view.Close()
		q.view = nil
	}
	return ifc.StatusOk
}

// subscribed returns the EQ that the driver chose for a type of events, or nil.
func (t *eqTable) subscribed(typ uint8) *eq {
	for _, q := range t.all() {
		if q.mask[typ/64]>>(typ%64)&1 != 0 {
			return q
		}
	}
	return nil
}

// event raises an asynchronous event at the EQ that the driver chose for its type. data is the union
// ev_data of struct mlx5_eqe, at most 28 bytes.
func (t *eqTable) event(typ, subtype uint8, data []byte) {
	if q := t.subscribed(typ); q != nil {
		t.post(q, typ, subtype, data)
	}
}

// completion raises the completion event of a CQ at the CQ's EQ.
func (t *eqTable) completion(eqn, cqn uint32) {
	if q, ok := t.get(eqn); ok {
		t.post(q, ifc.EventComp, 0, eventOfQueue(cqn)) // struct mlx5_eqe_comp
	}
}

// post writes an event and interrupts the driver. The callers hold locks of CQs and of the engine: it
// takes the queue's, and with that those of the bus and of faults.
func (t *eqTable) post(q *eq, typ, subtype uint8, data []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.view == nil {
		return
	}
	size := uint32(1) << q.logSize
	if q.pi-q.ci >= size { // the driver makes its EQs large enough
		return
	}
	at := int(q.pi&(size-1)) * eqeSize
	e := q.view.Bytes()[at : at+eqeSize]
	clear(e[:60])
	e[1], e[3] = typ, subtype
	copy(e[32:60], data)
	owner := q.pi >> q.logSize & 1 // 0 in the first round, before which init_eq_buf sets 1 (next_eqe_sw)
	q.pi++
	q.view.Word(at + 60).Store(bigEndian(owner)) // last, as it hands the entry to the driver
	t.env.record(Event{Kind: RecordEQE, Number: q.num, Offset: at / eqeSize, In: e})
	t.env.interrupt(q.vector)
	if typ != ifc.EventCmd {
		t.env.faults.event()
	}
}

// doorbell takes the driver's consumer index, and interrupts the driver again if it arms a queue that
// has more events.
func (t *eqTable) doorbell(uar, value uint32, arm bool) {
	q, ok := t.get(value >> 24)
	if !ok || q.uar != uar {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	// The index has 24 bits (mlx5_core's mlx5_eq_update_ci). One behind the last, or ahead of the
	// producer index, is ignored.
	if ci := q.pi - (q.pi-value)&0xffffff; q.pi-ci <= q.pi-q.ci {
		q.ci = ci
	}
	if arm && q.pi != q.ci {
		t.env.interrupt(q.vector)
	}
}

func eventOfQueue(num uint32) []byte {
	data := make([]byte, 28)
	be.PutUint32(data[24:], num)
	return data
}
