//go:build linux

package connectx

import (
	"bytes"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

// The dynamically connected transport: an initiator (DCI) is a QP whose requests have an address vector
// with the number and the key of a target (DCT), as those of datagrams have. A target has a context of
// its own and no queue but an SRQ. The engine connects them.

func dcts(t *dctTable) *objects[*dct] { return &t.objects }

var dctCommands = map[uint16]func(*dctTable, *call) ifc.Status{
	ifc.OpCreateDct:  (*dctTable).create,
	ifc.OpDestroyDct: drop(dcts, ifc.DestroyDctInDctn, (*dct).destroy),
	ifc.OpDrainDct:   on(dcts, ifc.DrainDctInDctn, (*dct).drain),
	ifc.OpQueryDct:   on(dcts, ifc.QueryDctInDctn, (*dct).query),
}

// dctTable has the targets. Their completions and keys are those of QPs.
type dctTable struct {
	qps *qpTable
	objects[*dct]
}

// dct is a target.
type dct struct {
	qp      *qp // what a QP has for completions and keys; the engine has none
	e       *engine.Target
	context []byte // struct dctc
}

// Values of dctc.state.
const (
	dctActive   = 0
	dctDraining = 1
)

var dctRights = rights{ifc.DctcRre: verbs.AccessRemoteRead, ifc.DctcRwe: verbs.AccessRemoteWrite, ifc.DctcRae: verbs.AccessRemoteAtomic}

func (t *dctTable) create(c *call) ifc.Status {
	ctx := bytes.Clone(ifc.CreateDctInDctContextEntry.At(c.in))
	mtu := verbs.MTU(ifc.DctcMtu.Get(ctx))
	if ifc.DctcState.Get(ctx) != dctActive || ifc.DctcCsRes.Is(ctx) || mtu.Bytes() == 0 {
		return ifc.StatusBadParamErr
	}
	pdn := ifc.DctcPd.U32(ctx)
	pd, okPD := t.qps.pds.Get(pdn)
	srq, okSRQ := t.qps.srqs.Get(ifc.DctcSrqnXrqn.U32(ctx))
	cq, okCQ := t.qps.cqs.Get(ifc.DctcCqn.U32(ctx))
	if !okPD || !okSRQ || !okCQ {
		return ifc.StatusBadResErr
	}
	d := &dct{context: ctx, qp: &qp{t: t.qps, st: ifc.QpTypeDci, userIndex: ifc.DctcUserIndex.U32(ctx), srq: srq}}
	d.qp.sq.updates = updater{env: t.qps.env, keys: t.qps.keys, pdn: pdn}
	var err error
	d.e, err = pd.CreateTarget(engine.TargetInit{
		Key: ifc.DctcDcAccessKey.Get(ctx), CQ: cq.e, SRQ: srq.e, Access: dctRights.of(ctx), MinRNRTimer: uint8(ifc.DctcMinRnrNak.Get(ctx)), MaxMTU: mtu,
		Owner: d, Invalidate: d.qp.sq.updates.invalidate, PageFault: d.qp.pageFault,
	})
	if err != nil {
		return ifc.StatusNoResErr
	}
	d.qp.num = d.e.Num()
	d.qp.sq.updates.qpn = d.qp.num
	if !t.Put(d.qp.num, d) {
		d.e.Destroy()
		return ifc.StatusNoResErr
	}
	ifc.CreateDctOutDctn.Set(c.out, uint64(d.qp.num))
	return ifc.StatusOk
}

func (d *dct) destroy() ifc.Status {
	d.e.Destroy()
	return ifc.StatusOk
}

// drain ends the target's connections, and then raises the event for which the driver waits before
// it destroys the target (mlx5_core's _mlx5_core_destroy_dct).
func (d *dct) drain(*call) ifc.Status {
	d.e.Drain()
	ifc.DctcState.Set(d.context, dctDraining)
	d.qp.t.eqs.event(ifc.EventDctDrained, 0, eventOfQueue(d.qp.num))
	return ifc.StatusOk
}

func (d *dct) query(c *call) ifc.Status {
	copy(ifc.QueryDctOutDctContextEntry.At(c.out), d.context)
	return ifc.StatusOk
}

// complete makes an entry of a receive. Nothing ends the target if the CQ has no room: the CQ's
// error does.
func (d *dct) complete(c *cq, w engine.Completion) bool {
	e, op, solicited := d.qp.entry(&w)
	return c.put(&e, op, solicited)
}

// target makes the destination of a DCI's request. The engine's handles of paths are kept for later
// requests, as those of datagrams are.
func (q *sender) target(av [avSize]byte) (to engine.Destination, ok bool) {
	qpn, key := be.Uint32(av[avQPN:]), be.Uint64(av[avQKey:])
	if qpn&extendedAV == 0 || qpn&0x7f000000 != 0 {
		return to, false
	}
	ah := q.handle(av)
	if ah == nil {
		return to, false
	}
	return engine.Destination{AH: ah.Num(), Num: qpn & 0xffffff, Key: key}, true
}
