//go:build linux

package connectx

// resources are objects that have nothing but a number.
type resources struct {
	caps                                 *capabilities
	uars, uarPages, tds, xrcds, counters objects[struct{}]
}

func tds(r *resources) *objects[struct{}]      { return &r.tds }
func xrcds(r *resources) *objects[struct{}]    { return &r.xrcds }
func counters(r *resources) *objects[struct{}] { return &r.counters }

var resourceCommands = map[uint16]func(*resources, *call) status{
	opAllocUar:               (*resources).allocUAR,
	opDeallocUar:             (*resources).deallocUAR,
	opAllocTransportDomain:   alloc(tds, 1, 1, allocTransportDomainOutTransportDomain),
	opDeallocTransportDomain: drop(tds, deallocTransportDomainInTransportDomain, nil),
	opAllocXrcd:              alloc(xrcds, 1, 1<<16, allocXrcdOutXrcd),
	opDeallocXrcd:            drop(xrcds, deallocXrcdInXrcd, nil),
	opAllocQCounter:          alloc(counters, 1, 255, allocQCounterOutCounterSetId),
	opDeallocQCounter:        drop(counters, deallocQCounterInCounterSetId, nil),
}

func (r *resources) reset() {
	for _, o := range []*objects[struct{}]{&r.uars, &r.uarPages, &r.tds, &r.xrcds, &r.counters} {
		o.clear(nil)
	}
}

const firstUAR = 16 // of the pages of the BAR: the others are the initialization segment's and MSI-X's

// allocUAR gives out the first UAR of a page of the driver's processor, which maps all that are in it.
func (r *resources) allocUAR(c *call) status {
	n := r.caps.uarsPerPage()
	page, ok := r.uarPages.add(struct{}{}, firstUAR/n, (1<<logUARs-1)/n)
	if !ok {
		return statusNoResErr
	}
	for i := range n {
		r.uars.put(page*n+i, struct{}{})
	}
	allocUarOutUar.set(c.out, uint64(page*n))
	return statusOk
}

func (r *resources) deallocUAR(c *call) status {
	n, first := r.caps.uarsPerPage(), deallocUarInUar.u32(c.in)
	if !r.uarPages.has(first/n) || first%n != 0 {
		return statusBadResErr
	}
	r.uarPages.remove(first / n)
	for i := range n {
		r.uars.remove(first + i)
	}
	return statusOk
}
