package record

import "slices"

// Group is a group of lines, measured by one clock: a section of the page.
type Group struct {
	Name  string
	Part  string // the part in which it is measured
	Works []Work
}

// Work is a line of a group, on each device.
type Work struct {
	Name    string
	Beside  string // what Go is compared with
	Devices []string
}

// The parts in which lines are measured.
const (
	Lab     = "lab"     // a kernel in QEMU, whose clock is dilated
	Native  = "native"  // User-mode Linux
	Counted = "counted" // a kernel in QEMU whose clock counts instructions
	Adapter = "adapter" // no kernel, and no adapter: mlx5
	Second  = "erdma"   // the same: erdma
)

// Names of groups.
const (
	UserSpace   = "Posting and polling in user space"
	Latency     = "Latency"
	Rate        = "Message rate and bandwidth"
	Connections = "Connections"
	Streams     = "Streams: package rsock"
	Soft        = "A device in user space"
	Instrs      = "Instructions of posting and polling"
	MLX5        = "Posting and polling on mlx5"
	InstrsMLX5  = "Instructions of posting and polling on mlx5"
	Erdma       = "Posting and polling on erdma"
	InstrsErdma = "Instructions of posting and polling on erdma"
)

var (
	both = []string{"rxe0", "siw0"}
	rxe  = both[:1]
	none = []string{""} // the work needs no device of the lab
	mlx5 = []string{"mlx5", "mlx5-single"}

	erdma = []string{"erdma", "erdma-single"}
)

var mlx5Works = []string{
	"send_1", "send_16", "write_1", "write_16", "post_recv_1", "post_recv_16",
	"poll_1", "poll_16", "poll_recv_1", "poll_recv_16", "poll_empty_1", "write_and_poll_16",
	"dci_send_inline_1", "dci_send_inline_16", "dci_send_1", "dci_send_16",
	"dci_write_inline_1", "dci_write_inline_16", "dci_write_1", "dci_write_16", "dci_poll_1", "dci_poll_16",
}

var erdmaWorks = []string{
	"send_1", "send_16", "write_1", "write_16", "post_recv_1", "post_recv_16",
	"poll_1", "poll_16", "poll_recv_1", "poll_recv_16", "poll_empty_1", "write_and_poll_16",
}

// Groups are all groups, in the order of the page.
var Groups = []Group{
	{UserSpace, Native, slices.Concat(
		works("libibverbs", both, "post_recv_1", "post_recv_16", "post_send_1", "post_send_16", "poll_1", "poll_16", "poll_empty_1"),
		works("cgo", both, "post_recv_1", "post_send_1", "poll_1", "poll_empty_1"),
	)},
	{Latency, Lab, withTails(
		works("C", both, "SEND of 8 bytes there and back, polled", "WRITE of 8 bytes there and back, polled", "READ of 8 bytes, polled"),
		works("C", rxe, "fetch-and-add, polled"),
		works("C", both, "SEND of 8 bytes there and back, events", "READ of 8 bytes, events", "SEND of 8 bytes there and back, PollWait"),
	)},
	{Rate, Lab, works("C", both, "SEND of 64 bytes", "WRITE of 64 bytes", "SEND of 64 bytes, 32 at a time", "SEND of 64 KiB", "WRITE of 64 KiB")},
	{Connections, Lab, works("C", both,
		"set-ups, one at a time", "set-ups, 16 at a time",
		"echo over 16 connections", "echo over 256 connections", "echo over 4096 connections", "memory of one of 4096")},
	{Streams, Lab, slices.Concat(
		works("rsockets", both, "echo of 8 bytes", "writes of 64 KiB"),
		works("TCP", both, "echo of 8 bytes", "writes of 64 KiB"),
	)},
	{Soft, Lab, works("rxe", none, "SEND of 8 bytes there and back, events", "SEND of 64 KiB")},
	{MLX5, Adapter, works("libmlx5", mlx5, mlx5Works...)},
	{Erdma, Second, works("liberdma", erdma, erdmaWorks...)},
	{InstrsMLX5, Counted, works("", mlx5, mlx5Works...)},
	{InstrsErdma, Counted, works("", erdma, erdmaWorks...)},
	{Instrs, Counted, works("", both, "post_recv_1", "post_recv_16", "post_send_1", "post_send_16", "poll_1", "poll_16", "poll_empty_1")},
}

func works(beside string, devices []string, names ...string) (all []Work) {
	for _, name := range names {
		all = append(all, Work{name, beside, devices})
	}
	return all
}

// Tail is the end of the name of a line that compares the 99th percentile, not the median.
const Tail = ", 99th percentile"

// withTails returns each work twice: its median, and its 99th percentile.
func withTails(lists ...[]Work) (all []Work) {
	for _, w := range slices.Concat(lists...) {
		tail := w
		tail.Name += Tail
		all = append(all, w, tail)
	}
	return all
}

// Has reports whether a line belongs to the group.
func (g Group) Has(l Line) bool {
	return g.Name == l.Group && slices.ContainsFunc(g.Works, func(w Work) bool {
		return w.Name == l.Name && w.Beside == l.Beside && slices.Contains(w.Devices, l.Device)
	})
}
