package kernel

import (
	"cmp"
	"os"
	"slices"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/internal/nldev"
)

// resourceNames are the names of kinds of objects in rdma-resource(8).
var resourceNames = map[uint16]string{
	abi.UVERBS_OBJECT_PD: "pd", abi.UVERBS_OBJECT_CQ: "cq", abi.UVERBS_OBJECT_QP: "qp",
	abi.UVERBS_OBJECT_MR: "mr", abi.UVERBS_OBJECT_SRQ: "srq", abi.UVERBS_OBJECT_MW: "mw", abi.UVERBS_OBJECT_AH: "ah",
}

// Resources returns the numbers of contexts ("ctx") and of objects that exist, by kind.
func (d *Device) Resources() map[string]int {
	counts := map[string]int{"ctx": 0}
	for _, name := range resourceNames {
		counts[name] = 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for f := range d.files {
		f.count(counts)
	}
	return counts
}

func (f *file) count(counts map[string]int) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.hasContext {
		counts["ctx"]++
	}
	for _, o := range f.objects.Values {
		if o != nil && !o.gone {
			counts[resourceNames[o.kind]]++
		}
	}
}

// tables are the kinds of objects by the tables of netlink that list them.
var tables = map[int]uint16{
	abi.RDMA_NLDEV_ATTR_RES_PD: abi.UVERBS_OBJECT_PD, abi.RDMA_NLDEV_ATTR_RES_CQ: abi.UVERBS_OBJECT_CQ,
	abi.RDMA_NLDEV_ATTR_RES_QP: abi.UVERBS_OBJECT_QP, abi.RDMA_NLDEV_ATTR_RES_MR: abi.UVERBS_OBJECT_MR,
	abi.RDMA_NLDEV_ATTR_RES_SRQ: abi.UVERBS_OBJECT_SRQ, abi.RDMA_NLDEV_ATTR_RES_CTX: abi.UVERBS_OBJECT_DEVICE,
}

// described is the description of an object, without what the engine knows.
type described struct {
	num, context, pd uint32
	users            int
	qps              []uint32 // of an SRQ
	value            any
}

// Objects returns the entries of a table of netlink: the contexts, or the objects of a kind, in the
// order of their numbers (fill_res_qp_entry and others of nldev.c).
func (d *Device) Objects(table int) (all [][]byte) {
	kind, ok := tables[table]
	if !ok {
		return nil
	}
	var list []described
	d.mu.Lock()
	for f := range d.files {
		list = append(list, f.list(kind)...)
	}
	d.mu.Unlock()
	slices.SortFunc(list, func(a, b described) int { return cmp.Compare(a.num, b.num) })
	for i := range list { // without locks of files
		all = append(all, list[i].entry())
	}
	return all
}

// list returns the file's context, or its objects of a kind.
func (f *file) list(kind uint16) (all []described) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	switch {
	case !f.hasContext:
		return nil
	case kind == abi.UVERBS_OBJECT_DEVICE:
		return []described{{num: f.num}}
	}
	srqs := map[*object][]uint32{}
	for _, o := range f.objects.Values {
		if o == nil || o.gone || o.kind != abi.UVERBS_OBJECT_QP {
			continue
		}
		if srq := o.parent(abi.UVERBS_OBJECT_SRQ); srq != nil {
			srqs[srq] = append(srqs[srq], o.value.(*qp).Num())
		}
	}
	for _, o := range f.objects.Values {
		if o == nil || o.gone || o.kind != kind {
			continue
		}
		d := described{num: o.num, context: f.num, users: o.users, qps: srqs[o], value: o.value}
		if pd := o.parent(abi.UVERBS_OBJECT_PD); pd != nil {
			d.pd = pd.num
		}
		all = append(all, d)
	}
	return all
}

func (d *described) entry() nldev.Attrs {
	a := nldev.Attrs{}.Uint32(abi.RDMA_NLDEV_ATTR_RES_PID, uint32(os.Getpid())).
		Uint32(abi.RDMA_NLDEV_ATTR_RES_CTXN, cmp.Or(d.context, d.num)).
		Uint32(abi.RDMA_NLDEV_ATTR_RES_USECNT, uint32(d.users)).Uint32(abi.RDMA_NLDEV_ATTR_RES_PDN, cmp.Or(d.pd, d.num))
	switch v := d.value.(type) {
	case *engine.CQ:
		return a.Uint32(abi.RDMA_NLDEV_ATTR_RES_CQN, d.num).Uint32(abi.RDMA_NLDEV_ATTR_RES_CQE, uint32(v.Ring().Cap()))
	case *engine.MR:
		return a.Uint32(abi.RDMA_NLDEV_ATTR_RES_MRN, d.num).Uint64(abi.RDMA_NLDEV_ATTR_RES_MRLEN, v.Length()).
			Uint32(abi.RDMA_NLDEV_ATTR_RES_LKEY, v.LKey()).Uint32(abi.RDMA_NLDEV_ATTR_RES_RKEY, v.LKey())
	case *qp:
		q := v.Query()
		a = a.Uint32(abi.RDMA_NLDEV_ATTR_RES_LQPN, v.Num()).Uint32(abi.RDMA_NLDEV_ATTR_PORT_INDEX, uint32(q.Port)).
			Uint32(abi.RDMA_NLDEV_ATTR_RES_TYPE, uint32(v.typ)).Uint32(abi.RDMA_NLDEV_ATTR_RES_STATE, uint32(q.State))
		if v.typ == verbs.UD {
			return a
		}
		return a.Uint32(abi.RDMA_NLDEV_ATTR_RES_RQPN, q.DestQPNum).Uint32(abi.RDMA_NLDEV_ATTR_RES_RQ_PSN, q.RQPSN).
			Uint32(abi.RDMA_NLDEV_ATTR_RES_SQ_PSN, q.SQPSN)
	case *engine.SRQ:
		var qps nldev.Attrs
		for _, num := range d.qps {
			qps = qps.Nested(abi.RDMA_NLDEV_ATTR_RES_QP_ENTRY, nldev.Attrs{}.Uint32(abi.RDMA_NLDEV_ATTR_RES_LQPN, num))
		}
		return a.Uint32(abi.RDMA_NLDEV_ATTR_RES_SRQN, d.num).Nested(abi.RDMA_NLDEV_ATTR_RES_QP, qps)
	}
	return a
}

// parent returns the object of a kind that o is made of, or nil.
func (o *object) parent(kind uint16) *object {
	if i := slices.IndexFunc(o.parents, func(p *object) bool { return p.kind == kind }); i >= 0 {
		return o.parents[i]
	}
	return nil
}
