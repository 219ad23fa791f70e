package record

import (
	"slices"
	"strings"
)

// Groups are all groups, in the order of the page.
var Groups = append(withPercentiles(), again(Counted, "post and poll", "set-up, event by event", "set-up", "rsock", "rsock, TCP")...)

// withPercentiles returns groups, with groups of percentiles of the same lines after each
// group of latencies, whose figures are medians.
func withPercentiles() []Group {
	var all []Group
	for _, g := range groups {
		all = append(all, g)
		for _, p := range []string{", 99th percentile", ", 99.9th percentile"} {
			if strings.HasPrefix(g.Name, "latency") {
				tail := g
				tail.Name, tail.Work = g.Name+p, g.Work+p
				all = append(all, tail)
			}
		}
	}
	return all
}

// again returns groups that are also measured in another part.
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
		Name: "post and poll", Part: Native, Work: "Posting and polling in user space",
		Lines: ops,
	}, {
		Name: "post and poll, single-threaded", Part: Native, Work: "Posting and polling in user space, without locks",
		Lines: ops,
	}, {
		Name: "post and poll, cgo", Part: Native, Work: "Posting and polling in user space, beside a wrapper in cgo",
		Lines: ops,
	}, {
		Name: "allocations", Part: Native, Work: "Allocations while posting and polling",
		Lines: []string{"allocations"},
	}, {
		Name: "latency", Part: Lab, Work: "Latency, polled",
		Lines: []string{sends, "WRITE of 8 bytes, there and back", reads}, RXE: []string{adds},
	}, {
		Name: "latency, events", Part: Lab, Work: "Latency, waiting for events",
		Lines: []string{sends, reads}, RXE: []string{adds},
	}, {
		Name: "latency, PollWait", Part: Lab, Work: "Latency, waiting with PollWait, beside C's events",
		Lines: []string{sends, reads}, RXE: []string{adds},
	}, {
		Name: "latency, garbage collection", Part: Lab, Work: "Latency, polled, while Go collects garbage",
		Lines: []string{reads},
	}, {
		Name: "latency, events, garbage collection", Part: Lab, Work: "Latency, waiting for events, while Go collects garbage",
		Lines: []string{reads},
	}, {
		Name: "message rate", Part: Lab, Work: "Message rate",
		Lines: slices.Concat([]string{"SEND of 8 bytes", "SEND of 64 bytes", "WRITE of 8 bytes", "WRITE of 64 bytes"}, batches),
	}, {
		Name: "message rate, batched", Part: Lab, Work: "Message rate, 32 posted at a time, beside C's one at a time",
		Lines: batches,
	}, {
		Name: "bandwidth", Part: Lab, Work: "Bandwidth",
		Lines: []string{"SEND of 4 KiB", "SEND of 64 KiB", "SEND of 1024 KiB", "WRITE of 4 KiB", "WRITE of 64 KiB", "WRITE of 1024 KiB"},
	}, {
		Name: "perftest", Part: Lab, Work: "`verbs perf` beside perftest",
		Lines: []string{
			"ib_send_lat, 8 bytes", "ib_write_lat, 8 bytes", "ib_read_lat, 8 bytes",
			"ib_send_bw, 64 KiB", "ib_write_bw, 64 KiB", "ib_read_bw, 64 KiB",
		},
		RXE: []string{"ib_atomic_lat", "ib_atomic_bw"},
	}, {
		Name: "connections", Part: Lab, Work: "Echo over many connections",
		Lines: []string{
			"echo of 64 bytes, 1 connection", "echo of 64 bytes, 16 connections",
			"echo of 64 bytes, 256 connections", "echo of 64 bytes, 4096 connections",
		},
	}, {
		Name: "memory per connection", Part: Lab, Work: "Memory per connection",
		Lines: []string{"client, of 4096 connections", "server, of 4096 connections"},
	}, {
		Name: "set-up, event by event", Part: Lab, Work: "Connection set-up, event by event as in C",
		Lines: setUps,
	}, {
		Name: "set-up", Part: Lab, Work: "Connection set-up with Dial and Listen",
		Lines: setUps,
	}, {
		Name: "first byte", Part: Lab, Work: "Time to the first byte",
		Lines: []string{"connection set up and a byte there and back", "process that has a byte sent and back"},
	}, {
		Name: "rsock", Part: Lab, Work: "Package rsock beside rsockets",
		Lines: streams,
	}, {
		Name: "rsock, TCP", Part: Lab, Work: "Package rsock beside TCP on the same link",
		Lines: streams,
	}, {
		Name: "layers", Part: Lab, Work: "64 KiB messages one way through each package, beside C's verbs",
		Lines: layers,
	}, {
		Name: "layers, TCP", Part: Lab, Work: "64 KiB messages one way through each package, beside TCP on the same link",
		Lines: layers,
	}, {
		Name: "soft", Part: Lab, Work: "A device in user space beside rxe, over a link",
		Anyhow: []string{
			"SEND of 8 bytes, events", "SEND of 64 KiB", "WRITE of 64 KiB", "READ of 64 KiB",
		},
	}, {
		Name: "size", Part: Lab, Work: "Size on disk and in memory",
		Lines:  []string{"resident, with the device open"},
		Anyhow: []string{"program with its shared libraries"},
	}, {
		Name: "start", Part: Lab, Work: "Start of the process to the list of devices",
		Anyhow: []string{"first device listed"},
	},
}

// Names of lines that are in more than one group.
const (
	sends = "SEND of 8 bytes, there and back"
	reads = "READ of 8 bytes"
	adds  = "fetch-and-add"
)

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
	layers = []string{
		"uverbs, SEND of 64 KiB", "rconn, SEND of 64 KiB", "rmsg, messages of 64 KiB", "rsock, writes of 64 KiB",
	}
)
