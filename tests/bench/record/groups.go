package record

import "slices"

// Groups are all there are, in the order in which the page has them.
var Groups = append(groups, again(Counted, "set-up, event by event", "set-up", "rsock", "rsock, TCP")...)

// again is groups that are measured in another part too.
func again(part string, names ...string) []Group {
	var also []Group
	for _, g := range groups {
		if slices.Contains(names, g.Name) {
			g.Name, g.Part, g.Work = g.Name+", "+part, part, g.Work+", "+part
			also = append(also, g)
		}
	}
	return also
}

var groups = []Group{
	{
		Name: "post and poll", Part: Native, Work: "Posting and polling in user space, but for the doorbell",
		Wanted: "≤ 0.9 × libibverbs' time", Target: 1 / 0.9,
		Lines: ops,
	}, {
		Name: "post and poll, cgo", Part: Native, Work: "The same, beside a wrapper in cgo",
		Wanted: "≤ 0.2 × the time through a cgo wrapper", Target: 1 / 0.2,
		Lines: ops,
	}, {
		Name: "allocations", Part: Native, Work: "Allocations while posting and polling",
		Wanted: "0",
		Lines:  []string{"allocations"},
	}, {
		Name: "latency", Part: Lab, Work: "Latency end to end, polled",
		Wanted: "≤ 1.0 × C's", Target: 1,
		Lines: []string{"SEND of 8 bytes, there and back", "WRITE of 8 bytes, there and back", "READ of 8 bytes"},
		RXE:   []string{"fetch-and-add"},
	}, {
		Name: "latency, events", Part: Lab, Work: "Latency end to end, waiting for events",
		Wanted: "≤ 1.1 × C's", Target: 1 / 1.1,
		Lines: []string{"SEND of 8 bytes, there and back", "READ of 8 bytes"},
		RXE:   []string{"fetch-and-add"},
	}, {
		Name: "message rate", Part: Lab, Work: "Message rate",
		Wanted: "≥ 1.0 × C's", Target: 1,
		Lines: slices.Concat([]string{"SEND of 8 bytes", "SEND of 64 bytes", "WRITE of 8 bytes", "WRITE of 64 bytes"}, batches),
	}, {
		Name: "message rate, batched", Part: Lab, Work: "Message rate, 32 posted at a time",
		Wanted: "≥ 1.3 × C's, posted one by one", Target: 1.3,
		Lines: batches,
	}, {
		Name: "bandwidth", Part: Lab, Work: "Bandwidth",
		Wanted: "≥ 1.0 × C's", Target: 1,
		Lines: []string{"SEND of 4 KiB", "SEND of 64 KiB", "SEND of 1024 KiB", "WRITE of 4 KiB", "WRITE of 64 KiB", "WRITE of 1024 KiB"},
	}, {
		Name: "perftest", Part: Lab, Work: "`verbs perf`, latency and bandwidth",
		Wanted: "as good as perftest's", Target: 1,
		Lines: []string{"ib_send_lat, 8 bytes", "ib_write_lat, 8 bytes", "ib_read_lat, 8 bytes", "ib_send_bw, 64 KiB"},
		RXE:   []string{"ib_atomic_lat"},
	}, {
		Name: "first byte", Part: Lab, Work: "Start of the process to the first byte",
		Wanted: "≤ 0.7 × C's time", Target: 1 / 0.7,
		Lines: []string{"process that has a byte sent and back"},
	}, {
		Name: "connections", Part: Lab, Work: "Echo over 1, 16 and 256 connections",
		Wanted: "≥ 1.0 × C's rate", Target: 1,
		Lines: []string{"echo of 64 bytes, 1 connection", "echo of 64 bytes, 16 connections", "echo of 64 bytes, 256 connections"},
	}, {
		Name: "memory per connection", Part: Lab, Work: "Memory of a connection",
		Wanted: "≤ 1.0 × C's", Target: 1,
		Lines: []string{"client, of 256 connections", "server, of 256 connections"},
	}, {
		Name: "set-up, event by event", Part: Lab, Work: "Setting connections up, event by event as C",
		Wanted: "≥ 1.0 × C's rate, ≤ 1.0 × C's time", Target: 1,
		Lines: setUps,
	}, {
		Name: "set-up", Part: Lab, Work: "Setting connections up, by Dial and Listen",
		Wanted: "≥ 1.0 × C's rate, ≤ 1.0 × C's time", Target: 1,
		Lines: setUps,
	}, {
		Name: "rsock", Part: Lab, Work: "Package rsock",
		Wanted: "as good as C's rsockets", Target: 1,
		Lines: streams,
	}, {
		Name: "rsock, TCP", Part: Lab, Work: "Package rsock beside TCP on the same link",
		Wanted: "none",
		Lines:  streams,
	}, {
		Name: "size", Part: Lab, Work: "Size, on disk and in memory",
		Wanted: "≤ C's with its shared libraries + 6 MiB", Slack: 6, Unit: "MiB",
		Lines:  []string{"resident, with the device open"},
		Anyhow: []string{"program with its shared libraries"},
	}, {
		Name: "start", Part: Lab, Work: "Start of the process to the list of devices",
		Wanted: "≤ 1.0 × C's time", Target: 1,
		Anyhow: []string{"first device listed"},
	},
}

// Names that more than one group has.
var (
	ops = []string{
		"post_recv_1", "post_recv_16", "post_send_1", "post_send_16", "post_send_64",
		"poll_1", "poll_16", "poll_empty_1",
	}
	batches = []string{
		"SEND of 8 bytes, 32 at a time", "SEND of 64 bytes, 32 at a time",
		"WRITE of 8 bytes, 32 at a time", "WRITE of 64 bytes, 32 at a time",
	}
	setUps  = []string{"set-up, by itself", "set-ups, one at a time", "set-ups, 16 at a time"}
	streams = []string{
		"echo of 8 bytes", "echo of 4096 bytes", "echo of 65536 bytes",
		"send of 64 bytes", "send of 4096 bytes", "send of 65536 bytes", "send of 1048576 bytes",
	}
)
