//go:build linux

package connectx

import (
	"fmt"
	"strings"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

// EventKind is a kind of [Event].
type EventKind uint8

const (
	RecordCommand  EventKind = iota // a command that has been executed
	RecordDoorbell                  // a store to a page of doorbells
	RecordWQE                       // a send request, at its doorbell
	RecordCQE                       // a completion, as written
	RecordEQE                       // an event, as written
	RecordReset                     // a function level reset
	RecordRefusal                   // why a send request of a QP is refused
)

func (k EventKind) String() string {
	return [...]string{"command", "doorbell", "wqe", "cqe", "eqe", "reset", "refusal"}[k]
}

// Event is an exchange between the driver and the adapter, for [Config].Record. In and Out are valid
// during the call.
type Event struct {
	Kind   EventKind
	Number uint32 // opcode of a command, UAR of a doorbell, number of the queue
	// Offset is in bytes of a doorbell in its page; the index of a CQE or an EQE in its ring; and of
	// a send request, also a refused one, its index in blocks of 64 bytes, which counts on over
	// rounds, in 16 bits.
	Offset int
	Status uint8  // of a command
	In     []byte // of a command, the stored bytes, or the entry
	Out    []byte // of a command
	Reason string // of a refusal
}

// String returns the event on a line, with at most 256 bytes of In and Out each.
func (e Event) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v %#x", e.Kind, e.Number)
	if e.Kind == RecordCommand { // the driver's own log names those that the adapter does not have
		fmt.Fprintf(&b, " %s", ifc.Layouts[uint16(e.Number)].Name)
	} else {
		fmt.Fprintf(&b, " +%#x", e.Offset)
	}
	if e.Status != 0 {
		fmt.Fprintf(&b, " status %#x", e.Status)
	}
	if e.Reason != "" {
		fmt.Fprintf(&b, ": %s", e.Reason)
	}
	for _, part := range []struct {
		name string
		data []byte
	}{{"in", e.In}, {"out", e.Out}} {
		if len(part.data) > 0 {
			fmt.Fprintf(&b, " %s %d %x", part.name, len(part.data), part.data[:min(len(part.data), 256)])
		}
	}
	return b.String()
}
