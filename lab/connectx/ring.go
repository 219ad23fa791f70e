//go:build linux

package connectx

import (
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/lab/internal/pcidev"
	"github.com/goverbs/verbs/lab/vfiouser"
)

// Words of a queue's doorbell record.
const (
	recvRecord = 0
	sendRecord = 1
)

// ring is a queue in the guest's memory with its doorbell record.
type ring struct {
	pcidev.Ring
	record    *vfiouser.View
	recordOff int    // offset of the doorbell record in record
	taken     uint16 // counts entries that the adapter has taken, of a send or receive queue
}

func (r *ring) close() {
	r.Unmap()
	if r.record != nil {
		r.record.Close()
		r.record = nil
	}
}

// posted returns word n of the doorbell record: the driver's count of what it has posted.
func (r *ring) posted(n int) uint32 { return pcidev.BigEndian(r.record.Word(r.recordOff + 4*n).Load()) }

// waiting returns the number of posted receives that have not been taken, at most count whatever the
// guest claims.
func (r *ring) waiting() int {
	return int(min(uint32(uint16(r.posted(recvRecord))-r.taken), r.Count))
}

// mapRing maps a ring of count entries of stride bytes from a list of pages. The unit of offset, the
// ring's start in the first page, is 1/64 of a page (page_offset of contexts).
func (e *env) mapRing(r *ring, list []byte, logPage, offset int, record uint64) ifc.Status {
	shift := 12 + logPage
	if shift > 30 {
		return ifc.StatusBadParamErr
	}
	start := offset << shift / 64
	size := int(r.Count) * r.Stride
	var st ifc.Status
	if r.View, st = e.pages(list, (start+size+1<<shift-1)>>shift, shift); st != ifc.StatusOk {
		return st
	}
	r.Start, r.Mem = start, r.View.Bytes()[start:start+size]
	if start%16 != 0 {
		st = ifc.StatusBadParamErr
	} else {
		r.record, r.recordOff, st = e.doorbellRecord(record)
	}
	if st != ifc.StatusOk {
		r.close()
	}
	return st
}

// doorbellRecord maps the page of a doorbell record, two big endian words at a multiple of 8 bytes, and
// returns the record's offset in the page.
func (e *env) doorbellRecord(addr uint64) (v *vfiouser.View, off int, st ifc.Status) {
	if addr%8 != 0 {
		return nil, 0, ifc.StatusBadParamErr
	}
	v, err := e.mem.Pages([]uint64{addr &^ 0xfff}, 4096)
	if err != nil {
		return nil, 0, ifc.StatusBadParamErr
	}
	return v, int(addr & 0xfff), ifc.StatusOk
}
