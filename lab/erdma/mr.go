//go:build linux

package erdma

import (
	"fmt"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/lab/vfiouser"
)

// pd is a protection domain. The driver numbers them without a command: it exists while something uses
// it.
type pd struct {
	num  uint32
	e    *engine.PD
	uses int
	dma  *engine.MR // all memory, for dmaKey; made when needed
}

// dmaKey is the local key of all memory, which is the kernel's alone (ib_device.local_dma_lkey). The engine
// has one for each PD, at dmaKeys plus its number.
const (
	dmaKey  = 0x7fffff00
	dmaKeys = 0x400000
)

func (p *pd) dmaKey() uint32 { return (dmaKeys + p.num) << 8 }

// usePD returns a PD for a user. Only commands call it.
func (d *Device) usePD(num uint32) (*pd, error) {
	p := d.pds[num]
	if p == nil {
		if num >= maxPDs {
			return nil, fmt.Errorf("PD %d: %w", num, errInvalid)
		}
		e, err := d.eng.AllocPD()
		if err != nil {
			return nil, err
		}
		p = &pd{num: num, e: e}
		d.pds[num] = p
	}
	p.uses++
	return p, nil
}

// leavePD ends a use of a PD.
func (d *Device) leavePD(p *pd) {
	if p.uses--; p.uses > 0 {
		return
	}
	if p.dma != nil {
		p.dma.Destroy()
	}
	p.e.Destroy()
	delete(d.pds, p.num)
}

// useDMA makes the PD's key of all memory.
func (d *Device) useDMA(p *pd) error {
	if p.dma != nil {
		return nil
	}
	mem, err := d.guest.Bytes(d.mem)
	if err == nil {
		p.dma, err = p.e.RegisterKey(p.dmaKey(), mem, 0, verbs.AccessLocalWrite)
	}
	return err
}

// mr is a memory region. That of a fast registration names memory only while a posted request has
// registered it.
type mr struct {
	d     *Device
	pd    *pd
	index uint32
	fast  bool
	table uint64 // of a fast registration: the address of its list of pages
	most  int    // pages of that list

	mu   sync.Mutex // taken with the engine's lock of a QP held
	gone bool
	key  uint32     // with which e is registered
	e    *engine.MR // nil if it names no memory
	view *vfiouser.View
}

// Types of regions, ERDMA_MR_TYPE_*.
const (
	mrNormal = 0
	mrFast   = 1
	mrDMA    = 2
)

// accessOf returns the access that ERDMA_MR_ACC_* grant: atomics, local reads, local writes, reads and writes.
func accessOf(bits uint32) (a verbs.Access) {
	for i, granted := range []verbs.Access{verbs.AccessRemoteAtomic, 0, verbs.AccessLocalWrite, verbs.AccessRemoteRead, verbs.AccessRemoteWrite} {
		if bits>>i&1 != 0 {
			a |= granted
		}
	}
	// The kernel demands it of programs (ib_check_mr_access), but not of itself.
	if a&(verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic) != 0 {
		a |= verbs.AccessLocalWrite
	}
	return a
}

// registerMR is struct erdma_cmdq_reg_mr_req.
func (d *Device) registerMR(b []byte, _ *response) error {
	cfg0, cfg1, cfg2 := le.Uint32(b[8:]), le.Uint32(b[12:]), le.Uint32(b[28:])
	start, size, count := le.Uint64(b[16:]), uint64(le.Uint32(b[24:])), int(cfg2&0xfffff)
	level, shift, typ := int(cfg2>>20&3), cfg2>>27, cfg1>>6&3
	if cfg0>>28&7 != 0 { // a larger region, in version 1 of the command
		size |= uint64(le.Uint32(b[40:])) << 32
		count |= int(le.Uint32(b[44:])) << 20
	}
	m := &mr{d: d, index: cfg0 & 0xfffff, key: cfg0&0xfffff<<8 | cfg0>>20&0xff}
	switch {
	case m.index >= maxMRs || d.mrs.Has(m.index): // 0 too, which the driver takes after the last (erdma_alloc_idx)
		return fmt.Errorf("region %d is in use, or not one of %d: %w", m.index, maxMRs, errInvalid)
	case cfg0>>28&7 > 1, cfg0>>31 != 0 != (typ == mrNormal), typ > mrDMA, cfg2>>24&7 != 0 && level > 1:
		return fmt.Errorf("region %d of type %d, level %d: %w", m.index, typ, level, errInvalid)
	case typ != mrDMA && (shift < 12 || count == 0):
		return fmt.Errorf("region %d of %d blocks of 1<<%d bytes: %w", m.index, count, shift, errInvalid)
	}
	var err error
	if m.pd, err = d.usePD(cfg1 >> 12); err != nil {
		return err
	}
	access := accessOf(cfg1 >> 1 & 31)
	var mem []byte
	switch typ {
	case mrFast: // ib_alloc_mr: the list is what posted requests name
		m.fast, m.table, m.most = true, le.Uint64(b[32:]), count
		if shift != 12 || level != 1 {
			err = fmt.Errorf("region %d of pages of 1<<%d bytes, level %d: %w", m.index, shift, level, errInvalid)
		}
	case mrDMA: // all memory, by its address (get_dma_mr)
		if mem, err = d.guest.Bytes(d.mem); err == nil {
			m.e, err = m.pd.e.RegisterKey(m.key, mem, 0, access)
		}
	case mrNormal:
		var list []uint64
		if size == 0 || size > 1<<logMR {
			err = fmt.Errorf("region %d of %#x bytes: %w", m.index, size, errInvalid)
		} else if list, err = d.table(level, le.Uint64(b[32:]), b[40:64], count); err == nil {
			err = m.register(list, 1<<shift, start, size, access)
		}
	}
	if err != nil {
		m.destroy()
		return err
	}
	d.mrs.Put(m.index, m)
	return nil
}

// register registers the memory of blocks, of which the first has the start.
func (m *mr) register(blocks []uint64, block, start, size uint64, access verbs.Access) error {
	r, err := m.d.views(blocks, block, int(start&(block-1)), int(size))
	if err != nil {
		return err
	}
	m.view = r.View
	if m.e, err = m.pd.e.RegisterKey(m.key, r.Mem, start, access); err != nil {
		m.unregister()
	}
	return err
}

// unregister ends the registration. After it, nobody uses the memory.
func (m *mr) unregister() {
	if m.e != nil {
		m.e.Destroy()
	}
	if m.view != nil {
		m.view.Close()
	}
	m.e, m.view = nil, nil
}

// deregisterMR is struct erdma_cmdq_dereg_mr_req.
func (d *Device) deregisterMR(b []byte, _ *response) error {
	num := le.Uint32(b[8:]) & 0xfffff
	m, ok := d.mrs.Remove(num)
	if !ok {
		return fmt.Errorf("no region %d: %w", num, errInvalid)
	}
	m.destroy()
	return nil
}

func (m *mr) destroy() {
	m.mu.Lock()
	m.gone = true
	m.unregister()
	m.mu.Unlock()
	m.d.leavePD(m.pd)
}

// Offsets in a request that registers or invalidates, struct erdma_reg_mr_sqe, which a list of up to
// inlinePages may follow.
const (
	regAddr     = 8
	regLength   = 16
	regKey      = 20
	regAttrs    = 24
	regPages    = 32
	inlinePages = 4 // ERDMA_MAX_INLINE_MTT_ENTRIES
)

// execute executes a request that registers memory, or invalidates a key. The engine's QP is locked.
func (q *qp) execute(id uint64, wqe []byte) verbs.WCStatus {
	op, key := byte(id>>idOpcode), le.Uint32(wqe[regKey:])
	if op == opReadInv { // the READ before it is complete
		key = le.Uint32(wqe[readInvalidate:])
	}
	m, ok := q.d.mrs.Get(key >> 8)
	if !ok || !m.fast || m.pd != q.pd {
		return q.refuse(uint16(id), "key %#x is not of a fast registration in the PD", key)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.gone:
		return q.refuse(uint16(id), "key %#x has been destroyed", key)
	case op != opRegister:
		// The kernel's rw.c gives a READ the variant that the key had before (rdma_rw_update_lkey).
		if m.e == nil || m.key != key && op != opReadInv {
			return q.refuse(uint16(id), "key %#x is not valid", key)
		}
		m.unregister()
		return verbs.WCSuccess
	case m.e != nil:
		return q.refuse(uint16(id), "key %#x is valid already", m.key)
	}
	attrs, size, start := le.Uint32(wqe[regAttrs:]), uint64(le.Uint32(wqe[regLength:])), le.Uint64(wqe[regAddr:])
	level, count, first, more := int(attrs>>6&3), int(attrs>>12), m.table, []byte(nil)
	if level == 0 {
		first, more = le.Uint64(wqe[regPages:]), wqe[regPages+8:][:8*(inlinePages-1)]
	}
	if count > m.most || size == 0 || level > 1 {
		return q.refuse(uint16(id), "%#x bytes in %d pages of %d", size, count, m.most)
	}
	list, err := q.d.table(level, first, more, count)
	if err == nil {
		m.key = key
		err = m.register(list, 4096, start, size, accessOf(attrs>>1&31))
	}
	if err != nil {
		return q.refuse(uint16(id), "%v", err)
	}
	return verbs.WCSuccess
}

// invalidate invalidates the key that a peer's SEND names. It reports false if the peer may not. The
// engine's QP is locked.
func (q *qp) invalidate(key uint32) bool {
	m, ok := q.d.mrs.Get(key >> 8)
	if !ok || !m.fast || m.pd != q.pd {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone || m.e == nil || m.key != key {
		return false
	}
	m.unregister()
	return true
}
