//go:build linux

package connectx

import (
	"encoding/binary"
	"time"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/lab/vfiouser"
)

var be = binary.BigEndian

// env is what the parts of an adapter have of the machine around them.
type env struct {
	mem       *vfiouser.Memory
	interrupt func(vector int)
	recorder  func(Event) // nil if nobody records
	start     time.Time
	faults    faults
}

// pages maps a list of pages of 1<<shift bytes, as a command has it at the end of its input. The
// lower bits of each address must be zero, except for those in flags.
func (e *env) pages(list []byte, count, shift int, flags uint64) (*vfiouser.View, ifc.Status) {
	if count <= 0 || count > len(list)/8 {
		return nil, ifc.StatusBadInpLenErr
	}
	if shift < 12 || shift > 30 {
		return nil, ifc.StatusBadParamErr
	}
	addrs := make([]uint64, count)
	for i := range addrs {
		a := be.Uint64(list[i*8:]) &^ flags
		if a&(1<<shift-1) != 0 {
			return nil, ifc.StatusBadParamErr
		}
		addrs[i] = a
	}
	v, err := e.mem.Pages(addrs, 1<<shift)
	if err != nil {
		return nil, ifc.StatusBadParamErr
	}
	return v, ifc.StatusOk
}

// clock is the adapter's timer, which counts nanoseconds.
func (e *env) clock() uint64 { return uint64(time.Since(e.start).Nanoseconds()) }

// record gives an event to the recorder.
func (e *env) record(event Event) {
	if e.recorder != nil {
		e.recorder(event)
	}
}

// bigEndian turns a word as it is in memory into its value, and back.
func bigEndian(v uint32) uint32 {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], v)
	return be.Uint32(b[:])
}
