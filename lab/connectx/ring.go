//go:build linux

package connectx

import (
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/lab/vfiouser"
)

// Words of a queue's doorbell record.
const (
	recvRecord = 0
	sendRecord = 1
)

// ring is a queue in the guest's memory with its doorbell record: mapped at an offset, as entries
// of a size and number that are powers of two.
type ring struct {
	view, record *vfiouser.View
	mem          []byte // of the entries
	start        int    // of mem in view
	recordOff    int
	count        uint32
	stride       int
	taken        uint16 // entries of a send or receive queue that the adapter has taken
}

func (r *ring) close() {
	for _, v := range []*vfiouser.View{r.view, r.record} {
		if v != nil {
			v.Close()
		}
	}
	r.view, r.record, r.mem = nil, nil, nil
}

// at returns entry i modulo the number of entries.
func (r *ring) at(i uint32) []byte {
	o := int(i&(r.count-1)) * r.stride
	return r.mem[o : o+r.stride]
}

// posted returns word n of the doorbell record.
func (r *ring) posted(n int) uint32 { return bigEndian(r.record.Word(r.recordOff + 4*n).Load()) }

// waiting returns how many receives are posted that have not been taken.
func (r *ring) waiting() int {
	return int(min(uint32(uint16(r.posted(recvRecord))-r.taken), r.count))
}

// mapRing maps a ring of count entries of stride bytes from a list of pages. The offset within the
// first page has units of 1/64 of it.
func (e *env) mapRing(r *ring, list []byte, logPage, offset int, record uint64) ifc.Status {
	shift := 12 + logPage
	if shift > 30 {
		return ifc.StatusBadParamErr
	}
	start := offset << shift / 64
	size := int(r.count) * r.stride
	var st ifc.Status
	if r.view, st = e.pages(list, (start+size+1<<shift-1)>>shift, shift); st != ifc.StatusOk {
		return st
	}
	r.start, r.mem = start, r.view.Bytes()[start:start+size]
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

// doorbellRecord maps a doorbell record: two big endian words at an address of eight bytes'
// alignment, of which the view has the first at the offset that is returned.
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
