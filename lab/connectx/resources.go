//go:build linux

package connectx

import "github.com/goverbs/verbs/lab/connectx/internal/ifc"

// resources are the objects that consist of a number.
type resources struct {
	caps                                 *capabilities
	uars, uarPages, tds, xrcds, counters objects[struct{}]
}

func tds(r *resources) *objects[struct{}]      { return &r.tds }
func xrcds(r *resources) *objects[struct{}]    { return &r.xrcds }
func counters(r *resources) *objects[struct{}] { return &r.counters }

var resourceCommands = map[uint16]func(*resources, *call) ifc.Status{
	ifc.OpAllocUar:               (*resources).allocUAR,
	ifc.OpDeallocUar:             (*resources).deallocUAR,
	ifc.OpAllocTransportDomain:   alloc(tds, 1, 1, ifc.AllocTransportDomainOutTransportDomain),
	ifc.OpDeallocTransportDomain: drop(tds, ifc.DeallocTransportDomainInTransportDomain, nil),
	ifc.OpAllocXrcd:              alloc(xrcds, 1, 1<<16, ifc.AllocXrcdOutXrcd),
	ifc.OpDeallocXrcd:            drop(xrcds, ifc.DeallocXrcdInXrcd, nil),
	ifc.OpAllocQCounter:          alloc(counters, 1, 255, ifc.AllocQCounterOutCounterSetId),
	ifc.OpDeallocQCounter:        drop(counters, ifc.DeallocQCounterInCounterSetId, nil),
}

func (r *resources) reset() {
	for _, o := range []*objects[struct{}]{&r.uars, &r.uarPages, &r.tds, &r.xrcds, &r.counters} {
		o.clear(nil)
	}
}

const firstUAR = 16 // pages of the BAR; those before are the initialization segment and MSI-X

// allocUAR allocates all UARs in a page of the driver's processor, and returns the first. The driver
// maps the page, and derives the others from the first (mlx5_core's alloc_uars_page).
func (r *resources) allocUAR(c *call) ifc.Status {
	n := r.caps.uarsPerPage()
	page, ok := r.uarPages.Add(struct{}{}, firstUAR/n, (1<<logUARs-1)/n)
	if !ok {
		return ifc.StatusNoResErr
	}
	for i := range n {
		r.uars.Put(page*n+i, struct{}{})
	}
	ifc.AllocUarOutUar.Set(c.out, uint64(page*n))
	return ifc.StatusOk
}

func (r *resources) deallocUAR(c *call) ifc.Status {
	n, first := r.caps.uarsPerPage(), ifc.DeallocUarInUar.U32(c.in)
	if !r.uarPages.Has(first/n) || first%n != 0 {
		return ifc.StatusBadResErr
	}
	r.uarPages.Remove(first / n)
	for i := range n {
		r.uars.Remove(first + i)
	}
	return ifc.StatusOk
}
