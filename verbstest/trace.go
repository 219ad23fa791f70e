package verbstest

import (
	"fmt"
	"strings"
	"time"

	"github.com/goverbs/verbs/internal/roce"
)

// trace has the last packets that were sent, in a ring.
type trace struct {
	entries []entry
	viewed  Packet // for the filter
}

type entry struct {
	header
	notes string // what happened to it
}

// record numbers a packet and adds it to the trace. The caller holds n.mu.
func (n *Network) record(pk *packet) {
	n.stats.Sent++
	pk.number = n.stats.Sent
	if n.opt.TraceLimit < 0 {
		return
	}
	if len(n.trace.entries) < n.opt.TraceLimit {
		n.trace.entries = append(n.trace.entries, entry{})
	}
	e := n.entry(pk.number)
	data := append(e.data[:0], pk.data...)
	*e = entry{header: pk.header}
	e.data = data
}

// entry returns the place in the ring of a packet.
func (n *Network) entry(number uint64) *entry {
	return &n.trace.entries[(number-1)%uint64(n.opt.TraceLimit)]
}

// note adds to what happened to a packet.
func (n *Network) note(pk *packet, format string, args ...any) {
	if n.opt.TraceLimit < 0 {
		return
	}
	e := n.entry(pk.number)
	if e.number != pk.number {
		return // The trace has newer packets.
	}
	if e.notes != "" {
		e.notes += ", "
	}
	e.notes += fmt.Sprintf(format, args...)
}

// last calls f for the packets of the trace, oldest first. The caller holds n.mu.
func (n *Network) last(f func(*entry)) {
	for i := range n.trace.entries {
		f(n.entry(n.stats.Sent - uint64(len(n.trace.entries)) + 1 + uint64(i)))
	}
}

// Trace returns the last packets that were sent, one per line: number, time, addresses, headers, in
// messages of the connection manager the IDs that the sender and the receiver have given the
// connection, and in brackets what the network did with the packet, unless it only delivered it.
func (n *Network) Trace() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var b strings.Builder
	n.last(func(e *entry) { e.line(&b) })
	return b.String()
}

func (e *entry) line(b *strings.Builder) {
	var p Packet
	p.decode(&e.header)
	src, dst := p.Src.String(), p.Dst.String()
	if p.Src.Port() == roce.Port && p.Dst.Port() == roce.Port {
		src, dst = p.Src.Addr().String(), p.Dst.Addr().String()
	}
	fmt.Fprintf(b, "%5d %d.%09d %s > %s  %v", p.Number, p.Time/time.Second, p.Time%time.Second, src, dst, &p)
	if e.notes != "" {
		fmt.Fprintf(b, " [%s]", e.notes)
	}
	b.WriteByte('\n')
}
