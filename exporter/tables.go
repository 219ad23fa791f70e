package exporter

import (
	"maps"
	"slices"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/rconn"
	"github.com/goverbs/verbs/rmsg"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/s3rdma"
	"github.com/goverbs/verbs/s3rdma/hipobj"
)

// Descriptions that several metrics have.
const (
	dials      = "Dials that started."
	dialsFail  = "Dials that failed."
	requests   = "Connection requests of peers."
	accepted   = "Connections that were accepted."
	rejected   = "Connection requests that were rejected."
	waiting    = "Connection requests that wait for an answer."
	open       = "Connections that are open."
	accepts    = "Connections that Accept returned."
	handshakes = "Handshakes that failed."
	bufferSize = "Memory of the rings of open connections."
	writeWaits = "Waits of Write, for room at the peer or in the own queue."
	writeTime  = "Time that Write waited, for room at the peer or in the own queue."
	callWaits  = "Waits of any call, which ended while polling or slept."
	acks       = "Frames without a message, which grant credits or confirm messages."
	large      = "Messages above Eager, which the receiver reads by itself."
	posted     = "Requests posted, by kind, those of Put, Get and others included."
	transfers  = "Objects that were moved by RDMA."
	moved      = "Bytes of objects that were moved by RDMA."
	declined   = "Requests with a token whose bytes went by HTTP."
	fellBack   = "Requests for objects that used HTTP."
	unmoved    = "Transfers that failed."
	adverts    = "Advertisements of regions, by what became of them."
)

var rsockListener = []metric[rsock.ListenerStats]{
	count("accepted_total", accepts, func(s *rsock.ListenerStats) uint64 { return s.Accepted }, "transport", "rdma"),
	count("accepted_total", accepts, func(s *rsock.ListenerStats) uint64 { return s.AcceptedTCP }, "transport", "tcp"),
	count("handshake_failures_total", handshakes, func(s *rsock.ListenerStats) uint64 { return s.Rejected }, "reason", "protocol"),
	count("handshake_failures_total", handshakes, func(s *rsock.ListenerStats) uint64 { return s.Failed }, "reason", "other"),
	level("handshakes", "Handshakes in progress.", func(s *rsock.ListenerStats) int { return s.Handshakes }),
	level("pending_connections", "Connections that wait for Accept.", func(s *rsock.ListenerStats) int { return s.Pending }),
	level("open_connections", open, func(s *rsock.ListenerStats) int { return s.Open }),
}

var rsockDialer = []metric[rsock.DialerStats]{
	count("dials_total", dials, func(s *rsock.DialerStats) uint64 { return s.Dials }),
	count("dial_failures_total", dialsFail, func(s *rsock.DialerStats) uint64 { return s.Failed }),
	count("dial_fallbacks_total", "Dials that made a TCP connection.", func(s *rsock.DialerStats) uint64 { return s.DialedTCP }),
	level("open_connections", open, func(s *rsock.DialerStats) int { return s.Open }),
}

var rsockConns = []metric[rsock.ConnStats]{
	count("received_bytes_total", "Data that peers have written, read or not.", func(s *rsock.ConnStats) uint64 { return s.BytesReceived }),
	count("sent_bytes_total", "Data that was passed to the device.", func(s *rsock.ConnStats) uint64 { return s.BytesSent }),
	count("received_messages_total", "Messages of data received.", func(s *rsock.ConnStats) uint64 { return s.MessagesReceived }),
	count("sent_messages_total", "Messages of data sent.", func(s *rsock.ConnStats) uint64 { return s.MessagesSent }),
	count("write_waits_total", writeWaits, func(s *rsock.ConnStats) uint64 { return s.PeerWaits }, "for", "peer"),
	count("write_waits_total", writeWaits, func(s *rsock.ConnStats) uint64 { return s.QueueWaits }, "for", "queue"),
	{"write_wait_seconds_total", writeTime, counter, func(s *rsock.ConnStats) float64 { return s.PeerWaitTime.Seconds() }, []string{"for", "peer"}},
	{"write_wait_seconds_total", writeTime, counter, func(s *rsock.ConnStats) float64 { return s.QueueWaitTime.Seconds() }, []string{"for", "queue"}},
	count("waits_total", callWaits, func(s *rsock.ConnStats) uint64 { return s.Spins }, "by", "polling"),
	count("waits_total", callWaits, func(s *rsock.ConnStats) uint64 { return s.Sleeps }, "by", "sleeping"),
	count("wakeups_total", "Times that a sleeping call was woken.", func(s *rsock.ConnStats) uint64 { return s.Wakeups }),
	level("unread_bytes", "Data that has arrived and was not read.", func(s *rsock.ConnStats) int { return s.Unread }),
	level("unsent_bytes", "Data that is not known to have arrived, of which up to a quarter of each ring may have.", func(s *rsock.ConnStats) int { return s.Unsent }),
	level("queued_requests", "Requests in send queues that are not known to be complete.", func(s *rsock.ConnStats) int { return s.SendQueued }),
	level("buffer_bytes", bufferSize, func(s *rsock.ConnStats) int { return s.ReadBuffer }, "ring", "read"),
	level("buffer_bytes", bufferSize, func(s *rsock.ConnStats) int { return s.WriteBuffer }, "ring", "write"),
}

var rmsgListener = []metric[rmsg.ListenerStats]{
	count("connection_requests_total", requests, func(s *rmsg.ListenerStats) uint64 { return s.Requests }),
	count("accepted_total", accepted, func(s *rmsg.ListenerStats) uint64 { return s.Accepted }),
	count("rejected_total", rejected, func(s *rmsg.ListenerStats) uint64 { return s.Rejected }),
	count("failed_total", "Accepted connections that were never established.", func(s *rmsg.ListenerStats) uint64 { return s.Failed }),
	level("waiting_connection_requests", waiting, func(s *rmsg.ListenerStats) int { return s.Waiting }),
	level("open_connections", open, func(s *rmsg.ListenerStats) int { return s.Open }),
}

var rmsgDialer = []metric[rmsg.DialerStats]{
	count("dials_total", dials, func(s *rmsg.DialerStats) uint64 { return s.Dials }),
	count("dial_failures_total", dialsFail, func(s *rmsg.DialerStats) uint64 { return s.Failed }),
	level("open_connections", open, func(s *rmsg.DialerStats) int { return s.Open }),
}

var rmsgSockets = []metric[rmsg.ConnStats]{
	count("received_bytes_total", "Size of the messages that the program has taken.", func(s *rmsg.ConnStats) uint64 { return s.BytesReceived }),
	count("sent_bytes_total", "Size of the messages that were sent.", func(s *rmsg.ConnStats) uint64 { return s.BytesSent }),
	count("received_messages_total", "Messages that the program has taken.", func(s *rmsg.ConnStats) uint64 { return s.MessagesReceived }),
	count("sent_messages_total", "Messages that were sent.", func(s *rmsg.ConnStats) uint64 { return s.MessagesSent }),
	count("large_messages_total", large, func(s *rmsg.ConnStats) uint64 { return s.LargeReceived }, "direction", "received"),
	count("large_messages_total", large, func(s *rmsg.ConnStats) uint64 { return s.LargeSent }, "direction", "sent"),
	count("acks_total", acks, func(s *rmsg.ConnStats) uint64 { return s.AcksReceived }, "direction", "received"),
	count("acks_total", acks, func(s *rmsg.ConnStats) uint64 { return s.AcksSent }, "direction", "sent"),
	count("would_block_total", "Posts that found the send queue full.", func(s *rmsg.ConnStats) uint64 { return s.WouldBlock }),
	count("buffer_waits_total", "Times that Send found its buffers full.", func(s *rmsg.ConnStats) uint64 { return s.BufferWaits }),
	count("credit_waits_total", "Times that a message waited for credits.", func(s *rmsg.ConnStats) uint64 { return s.CreditWaits }),
	level("queued_messages", "Messages that are posted and not sent yet.", func(s *rmsg.ConnStats) int { return s.Queued }),
	level("unread_messages", "Messages that have arrived and were not taken.", func(s *rmsg.ConnStats) int { return s.Unread }),
	level("memory_bytes", "Memory registered for open connections.", func(s *rmsg.ConnStats) int { return s.Memory }),
}

var rmsgLoop = []metric[rmsg.LoopStats]{
	count("dispatches_total", "Calls of Dispatch.", func(s *rmsg.LoopStats) uint64 { return s.Dispatches }),
	count("wakeups_total", "Times that the loop slept and was woken.", func(s *rmsg.LoopStats) uint64 { return s.Wakeups }),
	count("events_total", "Events handled.", func(s *rmsg.LoopStats) uint64 { return s.Handled }),
	level("connections", "Connections of the loop.", func(s *rmsg.LoopStats) int { return s.Conns }),
	level("listeners", "Listeners of the loop.", func(s *rmsg.LoopStats) int { return s.Listeners }),
	level("devices", "Devices that are open.", func(s *rmsg.LoopStats) int { return s.Devices }),
	level("cache_bytes", "Registered memory in the cache.", func(s *rmsg.LoopStats) int { return s.Cached }),
}

var rconnDialer = []metric[rconn.DialerStats]{
	count("dials_total", dials, func(s *rconn.DialerStats) uint64 { return s.Dials }),
	count("dial_failures_total", dialsFail, func(s *rconn.DialerStats) uint64 { return s.Failed }),
	level("open_connections", open, func(s *rconn.DialerStats) int { return s.Open }),
}

var rconnConns = slices.Concat(
	within(rconnTraffic, func(s *rconn.Stats) *rconn.Traffic { return &s.Sends }, "kind", "send"),
	within(rconnTraffic, func(s *rconn.Stats) *rconn.Traffic { return &s.Writes }, "kind", "write"),
	within(rconnTraffic, func(s *rconn.Stats) *rconn.Traffic { return &s.Reads }, "kind", "read"),
	within(rconnTraffic, func(s *rconn.Stats) *rconn.Traffic { return &s.Atomics }, "kind", "atomic"),
	within(rconnQueue, func(s *rconn.Stats) *rconn.QueueStats { return &s.SendQueue }, "queue", "send"),
	within(rconnQueue, func(s *rconn.Stats) *rconn.QueueStats { return &s.RecvQueue }, "queue", "receive"),
	[]metric[rconn.Stats]{
		count("requests_total", posted, func(s *rconn.Stats) uint64 { return s.Others }, "kind", "other"),
		count("received_messages_total", "Messages and WRITEs with an immediate of peers.", func(s *rconn.Stats) uint64 { return s.Received.Requests }),
		count("received_bytes_total", "Size of the received messages and WRITEs with an immediate.", func(s *rconn.Stats) uint64 { return s.Received.Bytes }),
		count("adverts_total", adverts, func(s *rconn.Stats) uint64 { return s.AdvertsSent }, "result", "sent"),
		count("adverts_total", adverts, func(s *rconn.Stats) uint64 { return s.AdvertsReceived }, "result", "received"),
		count("adverts_total", adverts, func(s *rconn.Stats) uint64 { return s.AdvertsInvalid }, "result", "invalid"),
	})

var rconnTraffic = []metric[rconn.Traffic]{
	count("requests_total", posted, func(s *rconn.Traffic) uint64 { return s.Requests }),
	count("request_bytes_total", "Local memory that requests send or fill, when posted.", func(s *rconn.Traffic) uint64 { return s.Bytes }),
}

var rconnQueue = []metric[rconn.QueueStats]{
	count("completions_total", "Completions of requests.", func(s *rconn.QueueStats) uint64 { return s.Completed }),
	count("completion_errors_total", "Completions with an error.", func(s *rconn.QueueStats) uint64 { return s.Failed }),
	count("stalls_total", "Posts that found the queue full.", func(s *rconn.QueueStats) uint64 { return s.Stalls }),
	count("waits_total", "Calls that waited for completions.", func(s *rconn.QueueStats) uint64 { return s.Waits }),
	count("wakeups_total", "Times that a call that waited for completions was woken.", func(s *rconn.QueueStats) uint64 { return s.Wakeups }),
	level("requests_in_flight", "Requests in flight.", func(s *rconn.QueueStats) int { return s.Now }),
	level("ready_completions", "Completions that wait for Await or Poll.", func(s *rconn.QueueStats) int { return s.Ready }),
}

var cmListener = []metric[cm.ListenerStats]{
	count("connection_requests_total", requests, func(s *cm.ListenerStats) uint64 { return s.Requests }),
	count("turned_away_total", "Connection requests beyond Backlog or MaxConns.", func(s *cm.ListenerStats) uint64 { return s.TurnedAway }),
	count("accepted_total", accepted, func(s *cm.ListenerStats) uint64 { return s.Accepted }),
	count("rejected_total", rejected, func(s *cm.ListenerStats) uint64 { return s.Rejected }),
	count("failed_total", "Handshakes that failed, and requests whose peer was gone before Accept returned them.", func(s *cm.ListenerStats) uint64 { return s.Failed }),
	level("waiting_connection_requests", waiting, func(s *cm.ListenerStats) int { return s.Waiting }),
	level("open_connections", open, func(s *cm.ListenerStats) int { return s.Open }),
}

var cmTransport = []metric[cm.TransportStats]{
	level("channels", "Connections to rdma_cm.", func(s *cm.TransportStats) int { return s.Channels }),
	level("ids", "Listeners, connections, and requests without an answer.", func(s *cm.TransportStats) int { return s.IDs }),
	level("leaving_connections", "Connections that were closed here and whose peers have not answered yet.", func(s *cm.TransportStats) int { return s.Leaving }),
	level("devices", "Devices that are open.", func(s *cm.TransportStats) int { return s.Devices }),
	level("endpoints", "Endpoints whose PD the transport has made.", func(s *cm.TransportStats) int { return s.Endpoints }),
}

// s3Server has a counter for each reason.
var s3Server = append([]metric[s3rdma.Stats]{
	count("transfers_total", transfers, func(s *s3rdma.Stats) uint64 { return s.Puts }, "op", "put"),
	count("transfers_total", transfers, func(s *s3rdma.Stats) uint64 { return s.Gets }, "op", "get"),
	count("bytes_total", moved, func(s *s3rdma.Stats) uint64 { return s.PutBytes }, "op", "put"),
	count("bytes_total", moved, func(s *s3rdma.Stats) uint64 { return s.GetBytes }, "op", "get"),
	count("failed_total", unmoved, func(s *s3rdma.Stats) uint64 { return s.Failed }),
	level("transfers", "Transfers that have memory and a queue pair.", func(s *s3rdma.Stats) int { return s.Transfers }),
	level("memory_bytes", "Registered memory that transfers have.", func(s *s3rdma.Stats) int64 { return s.Memory }),
	level("dcis", "DC initiators that were made.", func(s *s3rdma.Stats) int { return s.DCIs }),
	level("dcis_in_use", "DC initiators that transfers have.", func(s *s3rdma.Stats) int { return s.DCIsInUse }),
	level("open_connections", open, func(s *s3rdma.Stats) int { return s.Connections }),
}, byReason()...)

func byReason() (all []metric[s3rdma.Stats]) {
	for r := s3rdma.ReasonTransport; r <= s3rdma.ReasonFailed; r++ {
		all = append(all, count("declined_total", declined, func(s *s3rdma.Stats) uint64 { return s.Declined[r] }, "reason", r.String()))
	}
	return all
}

// s3Client has a counter for each reason, too.
var s3Client = []metric[s3rdma.ClientStats]{
	count("transfers_total", transfers, func(s *s3rdma.ClientStats) uint64 { return s.Puts }, "op", "put"),
	count("transfers_total", transfers, func(s *s3rdma.ClientStats) uint64 { return s.Gets }, "op", "get"),
	count("bytes_total", moved, func(s *s3rdma.ClientStats) uint64 { return s.PutBytes }, "op", "put"),
	count("bytes_total", moved, func(s *s3rdma.ClientStats) uint64 { return s.GetBytes }, "op", "get"),
	level("registered_bytes", "Memory that is registered, in use or not.", func(s *s3rdma.ClientStats) int { return s.Registered }),
	level("buffers_in_use", "Buffers of requests, and of bodies that are not closed.", func(s *s3rdma.ClientStats) int { return s.Lent }),
	level("idle_connections", "Queue pairs that wait for a request.", func(s *s3rdma.ClientStats) int { return s.Idle }),
}

func byFallback(now s3rdma.ClientStats) (all []metric[s3rdma.ClientStats]) {
	for _, reason := range slices.Sorted(maps.Keys(now.Fallbacks)) {
		all = append(all, count("fallbacks_total", fellBack, func(s *s3rdma.ClientStats) uint64 { return s.Fallbacks[reason] }, "reason", reason))
	}
	return all
}

var hipobjServer = []metric[hipobj.Stats]{
	count("transfers_total", transfers, func(s *hipobj.Stats) uint64 { return s.Puts }, "op", "put"),
	count("transfers_total", transfers, func(s *hipobj.Stats) uint64 { return s.Gets }, "op", "get"),
	count("bytes_total", moved, func(s *hipobj.Stats) uint64 { return s.PutBytes }, "op", "put"),
	count("bytes_total", moved, func(s *hipobj.Stats) uint64 { return s.GetBytes }, "op", "get"),
	count("failed_total", unmoved, func(s *hipobj.Stats) uint64 { return s.Failed }),
	count("refused_total", "PREPAREs beyond a limit, of another machine's GID, or not valid.", func(s *hipobj.Stats) uint64 { return s.Refused }),
	count("expired_total", "Sessions that a deadline has ended.", func(s *hipobj.Stats) uint64 { return s.Expired }),
	level("sessions", "Sessions that clients have.", func(s *hipobj.Stats) int { return s.Sessions }),
	level("memory_bytes", "Registered memory of sessions.", func(s *hipobj.Stats) int64 { return s.Memory }),
}
