//go:build linux

package connectx

import (
	"bytes"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/lab/internal/pcidev"
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
	uar     uint32    // where it takes doorbells
	mask    [4]uint64 // types of asynchronous events that it gets
	context []byte    // struct eqc
	pcidev.EventQueue
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
	q, logSize := &eq{uar: ifc.EqcUarPage.U32(ctx), context: bytes.Clone(ctx)}, ifc.EqcLogEqSize.Int(ctx)
	q.Vector, q.Interrupt, q.Mask = ifc.EqcIntr.Int(ctx), t.env.interrupt, indexMask
	for i := range q.mask {
		q.mask[i] = be.Uint64(ifc.CreateEqInEventBitmask.At(c.in)[i*8:])
	}
	shift := 12 + ifc.EqcLogPageSize.Int(ctx)
	// mlx5_core's create_map_eq sets no offset.
	if q.Vector >= vectors || logSize > t.caps.int(ifc.CapGeneral, ifc.CmdHcaCapLogMaxEqSz) || ifc.EqcPageOffset.Is(ctx) {
		return ifc.StatusBadParamErr
	}
	if !t.uars.Has(q.uar) {
		return ifc.StatusBadResErr
	}
	size := eqeSize << logSize
	q.Ring.Count, q.Ring.Stride = 1<<logSize, eqeSize
	var st ifc.Status
	if q.Ring.View, st = t.env.pages(ifc.CreateEqInPas.At(c.in), (size+1<<shift-1)>>shift, shift); st != ifc.StatusOk {
		return st
	}
	q.Ring.Mem = q.Ring.View.Bytes()[:size]
	if q.num, st = t.give(q, 1, maxEQs, c, ifc.CreateEqOutEqNumber); st != ifc.StatusOk {
		q.Close()
	}
	return st
}

func (q *eq) query(c *call) ifc.Status {
	q.Mu.Lock()
	defer q.Mu.Unlock()
	ctx := ifc.QueryEqOutEqContextEntry.At(c.out)
	copy(ctx, q.context)
	ifc.EqcConsumerCounter.Set(ctx, uint64(q.CI))
	ifc.EqcProducerCounter.Set(ctx, uint64(q.PI))
	return ifc.StatusOk
}

func (q *eq) close() ifc.Status {
	q.Close()
	return ifc.StatusOk
}

// subscribed returns the EQ that the driver chose for a type of events, or nil.
func (t *eqTable) subscribed(typ uint8) *eq {
	for _, q := range t.All() {
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
	if q, ok := t.Get(eqn); ok {
		t.post(q, ifc.EventComp, 0, eventOfQueue(cqn)) // struct mlx5_eqe_comp
	}
}

// post writes an event and interrupts the driver.
func (t *eqTable) post(q *eq, typ, subtype uint8, data []byte) {
	posted := q.Post(func(r *pcidev.Ring, i uint32) {
		e := r.At(i)
		clear(e[:60])
		e[1], e[3] = typ, subtype
		copy(e[32:60], data)
		// The owner is 0 in the first round, before which init_eq_buf sets 1 (next_eqe_sw).
		r.Word(i, 60).Store(pcidev.BigEndian(r.Round(i)))
		t.env.record(Event{Kind: RecordEQE, Number: q.num, Offset: int(i % r.Count), In: e})
	})
	if posted && typ != ifc.EventCmd {
		t.env.faults.Event()
	}
}

// doorbell takes the driver's consumer index (mlx5_core's mlx5_eq_update_ci).
func (t *eqTable) doorbell(uar, value uint32, arm bool) {
	if q, ok := t.Get(value >> 24); ok && q.uar == uar {
		q.Doorbell(value, arm)
	}
}

func eventOfQueue(num uint32) []byte {
	data := make([]byte, 28)
	be.PutUint32(data[24:], num)
	return data
}
