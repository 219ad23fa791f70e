package engine

import "sync/atomic"

type counter int

const (
	sentPackets counter = iota
	receivedPackets
	duplicateRequests
	outOfSequence
	receivedRNR
	sentRNR
	receivedSequenceErrors
	ackDeferred
	retriesExceeded
	rnrRetriesExceeded
	retries
	sendErrors
	linkDowned
	sends
	receives
	outOfBuffer // packets that found no place in a queue of the device: no receive, or a full queue
	rxDrops     // packets for which the port had no room
	portCounters

	// of device models
	ackTimeouts counter = iota - 1
	impliedNAKs
	writeRequests
	readRequests
	atomicRequests
	sentBytes
	receivedBytes
	numCounters
)

// counterNames are the names of rxe_hw_counters.c; of mlx5 and efa for losses that rxe does not
// have or count; and of device models.
var counterNames = [numCounters]string{
	"sent_pkts", "rcvd_pkts", "duplicate_request", "out_of_seq_request", "rcvd_rnr_err", "send_rnr_err",
	"rcvd_seq_err", "ack_deferred", "retry_exceeded_err", "retry_rnr_exceeded_err", "completer_retry_err",
	"send_err", "link_downed", "rdma_sends", "rdma_recvs",
	"out_of_buffer", "rx_drops",
	"ack_timeouts", "implied_naks", "write_requests", "read_requests", "atomic_requests", "sent_bytes", "rcvd_bytes",
}

type counters [numCounters]atomic.Uint64

func (c *counters) add(i counter, n int) { c[i].Add(uint64(n)) }

// Counter is a hardware counter of a port.
type Counter struct {
	Name  string
	Value uint64
}

// Counters returns the counters of port 1, in rxe's order and by its names, and counters of dropped
// packets.
func (d *Device) Counters() []Counter { return d.ModelCounters()[:portCounters] }

// ModelCounters adds the counters of device models.
func (d *Device) ModelCounters() []Counter {
	list := make([]Counter, numCounters)
	for i := range list {
		list[i] = Counter{counterNames[i], d.counters[i].Load()}
	}
	return list
}
