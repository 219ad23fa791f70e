package perf

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/goverbs/verbs"
)

// version is the version of the protocol between client and server.
const version = 2

// Limits of a run.
const (
	maxSize    = 8 << 20
	maxQPs     = 256
	maxDepth   = 16 << 10
	maxMemory  = 1 << 30
	maxTimeout = time.Hour
)

// work is a client's request for one run.
type work struct {
	Version   int           `json:"version"`
	Op        string        `json:"op"`
	Mode      string        `json:"mode"`
	Size      int           `json:"size"`               // bytes per message
	Iters     int           `json:"iters,omitempty"`    // messages on each QP
	Duration  time.Duration `json:"duration,omitempty"` // instead of Iters
	QPs       int           `json:"qps"`
	TxDepth   int           `json:"tx_depth"` // of each QP
	RxDepth   int           `json:"rx_depth"`
	List      int           `json:"list"`   // messages posted at a time
	CQMod     int           `json:"cq_mod"` // messages per completion
	Inline    int           `json:"inline"` // the longest message that is copied into the request
	Both      bool          `json:"both"`   // both sides send
	Events    bool          `json:"events"` // sleep for completions
	TClass    uint8         `json:"tclass,omitempty"`
	PKey      uint16        `json:"pkey,omitempty"` // of the QPs, see session.choosePKey
	PKeyIndex *int          `json:"-"`              // of PKey in the client's table; nil for the default
	Timeout   time.Duration `json:"timeout"`        // without progress
}

const (
	modeLat = "lat"
	modeBW  = "bw"
)

// operation holds the differences between the tests.
type operation struct {
	opcode   verbs.Opcode
	receives bool // each message consumes one of the peer's receives
	atomic   bool
	fetches  bool // the response has the data: only the requester counts
	datagram bool
}

var operations = map[string]operation{
	"send":      {opcode: verbs.OpSend, receives: true},
	"write":     {opcode: verbs.OpRDMAWrite},
	"write-imm": {opcode: verbs.OpRDMAWriteImm, receives: true},
	"read":      {opcode: verbs.OpRDMARead, fetches: true},
	"fetch-add": {opcode: verbs.OpFetchAdd, fetches: true, atomic: true},
	"cmp-swap":  {opcode: verbs.OpCompareSwap, fetches: true, atomic: true},
	"ud":        {opcode: verbs.OpSendImm, receives: true, datagram: true},
}

func (w *work) operation() operation { return operations[w.Op] }

// answered reports whether the peer's program answers each message.
func (w *work) answered() bool { return w.Mode == modeLat && !w.operation().fetches }

// ways returns how many one-way latencies a latency test's time consists of: that of a message and
// of its answer, if any.
func (w *work) ways() time.Duration {
	if w.answered() {
		return 2
	}
	return 1
}

// validate returns an error if the run is not possible. The client calls it for its user's
// sake, and the server for its own.
func (w *work) validate() error {
	op, known := operations[w.Op]
	inRange := func(what string, v, least, most int) error {
		if v < least || v > most {
			return fmt.Errorf("%s: %d is not in %d..%d", what, v, least, most)
		}
		return nil
	}
	check := func(bad bool, format string, args ...any) error {
		if bad {
			return fmt.Errorf(format, args...)
		}
		return nil
	}
	switch {
	case w.Version != version:
		return fmt.Errorf("the client speaks version %d of the protocol and the server %d", w.Version, version)
	case !known || w.Mode != modeLat && w.Mode != modeBW:
		return fmt.Errorf("no such test: %.20q %.20q", w.Op, w.Mode)
	}
	qps := maxQPs
	if w.Mode == modeLat {
		qps = 1
	}
	if err := errors.Join(
		inRange("size (-s)", w.Size, 1, maxSize),
		inRange("QPs (-q)", w.QPs, 1, qps),
		inRange("tx-depth (-t)", w.TxDepth, 1, maxDepth),
		inRange("rx-depth (-r)", w.RxDepth, 1, maxDepth),
	); err != nil {
		return err
	}
	return errors.Join(
		inRange("post-list (-l)", w.List, 1, w.TxDepth),
		inRange("cq-mod (-Q)", w.CQMod, 1, w.TxDepth),
		inRange("inline (-I)", w.Inline, 0, math.MaxUint16),
		check(w.credits() && w.List > w.RxDepth, "post-list (-l): %d is more than the receives (-r), %d", w.List, w.RxDepth),
		check(op.atomic && w.Size != 8, "size (-s): atomics are of 8 bytes, not %d", w.Size),
		check(op.fetches && w.Inline > 0, "inline (-I): %s has no data to send", w.Op),
		check(w.Iters < 0 || w.Duration < 0, "iterations (-n, %d) and duration (-D, %v): neither may be negative", w.Iters, w.Duration),
		check((w.Iters > 0) == (w.Duration > 0), "iterations (-n, %d) or duration (-D, %v): one of them", w.Iters, w.Duration),
		check(w.Both && w.Mode == modeLat, "bidirectional (-b) is for bandwidth"),
		check(w.Events && w.Op == "write" && w.Mode == modeLat,
			"events (-e): an RDMA WRITE causes no event at the peer; use write-imm"),
		check(w.PKeyIndex != nil && (*w.PKeyIndex < 0 || *w.PKeyIndex > math.MaxUint16), "P_Key index (--pkey-index): not in 0..%d", math.MaxUint16),
		check(w.Timeout <= 0 || w.Timeout > maxTimeout, "timeout: %v is not in 1ns..%v", w.Timeout, maxTimeout),
		check(uint64(w.memory()) > maxMemory, "%d QPs with messages of %d bytes and queues of %d and %d requests need more than %d bytes of memory",
			w.QPs, w.Size, w.TxDepth, w.RxDepth, maxMemory),
	)
}

// credits reports whether receivers grant credits to senders.
func (w *work) credits() bool {
	op := w.operation()
	return op.receives && !op.datagram && w.Mode == modeBW
}

// quantum returns how many messages a credit is for. At most quantum-1 messages
// have been received and not credited, so the receives for a post-list remain.
func (w *work) quantum() int { return max(1, (w.RxDepth-w.List)/2) }

// creditRecvs returns how many credits may be in flight to a side: those for all
// messages that it has sent and that have not been credited.
func (w *work) creditRecvs() int {
	if !w.credits() {
		return 0
	}
	return w.RxDepth/w.quantum() + 1
}

// creditSends is how many credits a side has in flight at a time; more wait.
const creditSends = 4

func (w *work) cap() verbs.QPCap {
	c := verbs.QPCap{MaxSendWR: w.TxDepth, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: cmp.Or(w.Inline, -1)}
	if w.credits() {
		c.MaxSendWR += creditSends
	}
	if w.operation().receives {
		c.MaxRecvWR = w.RxDepth + w.creditRecvs()
	}
	return c
}

func (w *work) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s of %d bytes", w.Op, w.Mode, w.Size)
	if w.QPs > 1 {
		fmt.Fprintf(&b, " on %d QPs", w.QPs)
	}
	return b.String()
}

// layout holds the offsets in a side's memory:
//
//	out │ in of QP 0 │ in of QP 1 │ ...
//
// out holds the data that is sent or written, or that the peer reads; in holds the data
// that is received or read from the peer, or that the peer's atomics change.
type layout struct{ head, stride, in, total int }

func (w *work) layout() (l layout) {
	const line = 64 // bytes of a cache line
	align := func(n int) int { return (n + line - 1) &^ (line - 1) }
	if w.operation().datagram {
		l.head = verbs.GRHSize
	}
	l.in = align(w.Size)
	l.stride = align(l.head + w.Size)
	l.total = l.in + w.QPs*l.stride
	return l
}

// memory returns the bytes of a side's memory and its queues, each of whose requests takes some 250
// here and in the QP.
func (w *work) memory() int64 {
	return int64(w.layout().total) + int64(w.QPs)*int64(w.TxDepth+w.RxDepth)*256
}

func (l layout) inOf(queue int) int { return l.in + queue*l.stride }

// data returns the offset of the data that a queue receives, behind the GRH of a datagram.
func (l layout) data(queue int) int { return l.inOf(queue) + l.head }
