package kernel

import (
	"cmp"
	"slices"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/internal/host"
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
	for _, o := range f.objects {
		if o != nil && !o.gone {
			counts[resourceNames[o.kind]]++
		}
	}
}

// described is the description of an object, without what the engine knows.
type described struct {
	host.Object
	value any
}

// Objects returns the contexts and objects that exist, in the order of their numbers.
func (d *Device) Objects() (all []host.Object) {
	var list []described
	d.mu.Lock()
	for f := range d.files {
		list = append(list, f.list()...)
	}
	d.mu.Unlock()
	slices.SortFunc(list, func(a, b described) int { return cmp.Compare(a.Num, b.Num) })
	for i := range list { // without locks of files
		all = append(all, list[i].complete())
	}
	return all
}

// list returns the file's context and objects.
func (f *file) list() (all []described) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if !f.hasContext {
		return nil
	}
	all = append(all, described{host.Object{Kind: "ctx", Num: f.num}, nil})
	srqs := map[*object][]uint32{}
	for _, o := range f.objects {
		if o == nil || o.gone || o.kind != abi.UVERBS_OBJECT_QP {
			continue
		}
		if srq := o.parent(abi.UVERBS_OBJECT_SRQ); srq != nil {
			srqs[srq] = append(srqs[srq], o.value.(*qp).Num())
		}
	}
	for _, o := range f.objects {
		if o == nil || o.gone {
			continue
		}
		switch o.kind {
		case abi.UVERBS_OBJECT_MW, abi.UVERBS_OBJECT_AH: // rdma-resource(8) does not list these
			continue
		}
		d := host.Object{Kind: resourceNames[o.kind], Num: o.num, Context: f.num, Users: o.users, QPs: srqs[o]}
		if pd := o.parent(abi.UVERBS_OBJECT_PD); pd != nil {
			d.PD = pd.num
		}
		all = append(all, described{d, o.value})
	}
	return all
}

// complete adds what the engine knows.
func (d *described) complete() host.Object {
	o := d.Object
	switch v := d.value.(type) {
	case *engine.CQ:
		o.Depth = v.Ring().Cap()
	case mr:
		o.Length, o.Key = v.Length(), v.LKey()
	case *qp:
		a := v.Query()
		o.Num, o.QPType, o.State, o.Port = v.Num(), v.typ, a.State, int(a.Port)
		if v.typ != verbs.UD {
			o.RemoteNum, o.RecvPSN, o.SendPSN = a.DestQPNum, a.RQPSN, a.SQPSN
		}
	}
	return o
}

// parent returns the object of a kind that o is made of, or nil.
func (o *object) parent(kind uint16) *object {
	if i := slices.IndexFunc(o.parents, func(p *object) bool { return p.kind == kind }); i >= 0 {
		return o.parents[i]
	}
	return nil
}
