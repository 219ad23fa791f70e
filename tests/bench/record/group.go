package record

import "slices"

// Group is lines that have one target, a line of the table of targets.
type Group struct {
	Name    string // as Line.Group has it
	Part    string // Lab or Native
	Work    string // what is done
	Wanted  string // what is wanted of it, in words
	Target  float64
	Slack   float64
	Unit    string   // Slack's
	Lines   []string // names of what belongs to it on every device: a line that is missing was not measured
	Devices []string // that can do it; none: both, or "" where the work has nothing to do with one
}

// Where things are measured.
const (
	Lab    = "lab"    // a kernel in QEMU
	Native = "native" // User-mode Linux
)

// Find is the group of that name.
func Find(name string) (Group, bool) {
	i := slices.IndexFunc(Groups, func(g Group) bool { return g.Name == name })
	if i < 0 {
		return Group{}, false
	}
	return Groups[i], true
}

func (g Group) devices() []string {
	if g.Devices != nil {
		return g.Devices
	}
	return []string{"rxe0", "siw0"}
}

var ops = []string{
	"post_recv_1", "post_recv_16", "post_send_1", "post_send_16", "post_send_64", "poll_1", "poll_16", "poll_empty_1",
}

var streams = []string{
	"echo of 8 bytes", "echo of 4096 bytes", "echo of 65536 bytes",
	"send of 64 bytes", "send of 4096 bytes", "send of 65536 bytes", "send of 1048576 bytes",
}

// Groups are all there are, in the order in which the page has them.
var Groups = []Group{
	{Name: "post and poll", Part: Native, Work: "Posting and polling in user space", Wanted: "≤ 0.9 × libibverbs' time", Target: 1 / 0.9, Lines: ops},
	{Name: "post and poll, cgo", Part: Native, Work: "Posting and polling, beside a wrapper in cgo", Wanted: "≤ 0.2 × the time through a cgo wrapper", Target: 1 / 0.2, Lines: ops},
	{Name: "allocations", Part: Native, Work: "Allocations while posting and polling", Wanted: "0", Lines: []string{"allocations"}},
	{Name: "latency", Part: Lab, Work: "Latency end to end, polled", Wanted: "≤ 1.0 × C's", Target: 1},
	{Name: "latency, events", Part: Lab, Work: "Latency end to end, waiting for events", Wanted: "≤ 1.1 × C's", Target: 1 / 1.1},
	{Name: "message rate", Part: Lab, Work: "Message rate", Wanted: "≥ 1.0 × C's", Target: 1},
	{Name: "message rate, batched", Part: Lab, Work: "Message rate, 32 posted at a time", Wanted: "≥ 1.3 × C's, posted one by one", Target: 1.3},
	{Name: "bandwidth", Part: Lab, Work: "Bandwidth", Wanted: "≥ 1.0 × C's", Target: 1},
	{Name: "perftest", Part: Lab, Work: "`verbs perf`, latency and bandwidth", Wanted: "as good as perftest's", Target: 1},
	{Name: "first byte", Part: Lab, Work: "Start of the process to the first byte", Wanted: "≤ 0.7 × C's time", Target: 1 / 0.7},
	{Name: "connections", Part: Lab, Work: "Echo over 1, 16 and 256 connections", Wanted: "≥ 1.0 × C's rate", Target: 1},
	{Name: "memory per connection", Part: Lab, Work: "Memory of a connection", Wanted: "≤ 1.0 × C's", Target: 1, Lines: []string{"an idle connection"}},
	{Name: "set-up", Part: Lab, Work: "Setting connections up", Wanted: "≥ 1.0 × C's rate, ≤ 1.0 × C's time", Target: 1, Lines: []string{"set-up, one at a time", "set-ups, one at a time", "set-ups, 16 at a time"}},
	{Name: "rsock", Part: Lab, Work: "Package rsock", Wanted: "as good as C's rsockets", Target: 1, Lines: streams},
	{Name: "rsock, TCP", Part: Lab, Work: "Package rsock beside TCP on the same link", Wanted: "none", Lines: streams},
	{Name: "size", Part: Lab, Work: "Size, on disk and in memory", Wanted: "≤ C's with its shared libraries + 6 MiB", Slack: 6, Unit: "MiB"},
	{Name: "start", Part: Lab, Work: "Start of the process to the list of devices", Wanted: "≤ 1.0 × C's time", Target: 1},
}
