//go:build linux

package machine

import (
	"io"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/goverbs/verbs/lab/internal/image"
)

// Options describe a machine.
type Options struct {
	Accel   string
	Factor  float64 // of dilation
	Timeout time.Duration
	Mem     int // MiB
	CPUs    int
	Debug   bool

	NICs        []string // adapters, of --nic
	NICLog      string
	UDP         netip.Addr     // of --udp
	AdapterWire *Wire          // of all adapters: the guest may number them in another order
	Emulator    image.Emulator // QEMU; the zero value is the architecture's on this machine

	Userland string // a folder whose programs hide this machine's; none if empty

	// If there are two machines, the wires between them and the number of this one.
	net    *network
	number int
}

// on returns the options for one of two machines.
func (o Options) on(net *network, number int) Options {
	o.net, o.number = net, number
	return o
}

// modules returns the modules of the machine's devices.
func (o Options) modules() []string { return slices.Concat(image.RDMAModules, o.AdapterModules()) }

// AdapterModules returns the modules of the machine's adapters.
func (o Options) AdapterModules() (names []string) {
	for _, kind := range o.NICs {
		if Adapters[kind].ERDMA != nil {
			names = append(names, "virtio_net", "erdma")
		} else {
			names = append(names, "mlx5_ib")
		}
	}
	return names
}

// The numbers of the two machines of a pair. A single machine has number 0.
const (
	firstMachine = 1
	peerMachine  = 2
)

// Stdio has the standard streams of a program on a machine, and the source of its signals.
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
	Signals  <-chan os.Signal // SIGQUIT, for the program
}

// Limits of the time until the program starts: on a machine that has run another program, on one of two
// machines, for which the other waits, unless the host is overloaded, and on others.
const (
	reuseLimit    = time.Minute // it starts at once: the machine has been cleaned before the last result
	pairBootLimit = 90 * time.Second
	bootLimit     = 10 * time.Minute
)
