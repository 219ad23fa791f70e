//go:build linux

package connectx

import (
	"encoding/binary"
	"time"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/lab/internal/pcidev"
	"github.com/goverbs/verbs/lab/vfiouser"
)

var le, be = binary.LittleEndian, binary.BigEndian

// env is the machine around an adapter, as its parts use it.
type env struct {
	mem       *vfiouser.Memory
	interrupt func(vector int)
	recorder  func(Event) // nil if nobody records
	start     time.Time
	faults    pcidev.Faults
}

// pages maps count pages of 1<<shift bytes, which a command lists at the end of its input.
func (e *env) pages(list []byte, count, shift int) (*vfiouser.View, ifc.Status) {
	if shift > 30 {
		return nil, ifc.StatusBadParamErr
	}
	addrs, st := pageAddrs(list, uint64(count), shift, 0)
	if st != ifc.StatusOk {
		return nil, st
	}
	v, err := e.mem.Pages(addrs, 1<<shift)
	if err != nil {
		return nil, ifc.StatusBadParamErr
	}
	return v, ifc.StatusOk
}

// pageAddrs returns the first count addresses of a list of pages of 1<<shift bytes. They must be
// aligned, except for the bits in flags, which it clears.
func pageAddrs(list []byte, count uint64, shift int, flags uint64) ([]uint64, ifc.Status) {
	if count == 0 || count > uint64(len(list))/8 {
		return nil, ifc.StatusBadInpLenErr
	}
	addrs := make([]uint64, count)
	for i := range addrs {
		addrs[i] = be.Uint64(list[i*8:]) &^ flags
		if addrs[i]&(1<<shift-1) != 0 {
			return nil, ifc.StatusBadParamErr
		}
	}
	return addrs, ifc.StatusOk
}

// clock is the adapter's timer, which counts nanoseconds.
func (e *env) clock() uint64 { return uint64(time.Since(e.start).Nanoseconds()) }

// record gives an event to the recorder.
func (e *env) record(event Event) {
	if e.recorder != nil {
		e.recorder(event)
	}
}
