package kernel

import "github.com/goverbs/verbs/abi"

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
