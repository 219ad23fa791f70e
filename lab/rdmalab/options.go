//go:build linux

package main

import (
	"io"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/goverbs/verbs/lab/connectx"
	"github.com/goverbs/verbs/lab/internal/image"
)

// options describe a machine.
type options struct {
	accel   string
	factor  float64 // of dilation
	timeout time.Duration
	mem     int // MiB
	cpus    int
	debug   bool

	nics        []string // adapters, of --nic
	niclog      string
	udp         netip.Addr     // of --udp
	adapterWire *connectx.Wire // of all adapters: the guest may number them in another order
	emulator    image.Emulator // QEMU; that of the architecture if it has no program

	userland string // a folder whose programs hide this machine's; none if empty

	// If there are two machines, the wires between them and the number of this one.
	net  *network
	host int
}

// on returns the options for one of two machines.
func (o options) on(net *network, host int) options {
	o.net, o.host = net, host
	return o
}

// modules returns the modules of the machine's devices.
func (o options) modules() []string {
	if len(o.nics) == 0 {
		return image.RDMAModules
	}
	return slices.Concat(image.RDMAModules, image.AdapterModules)
}

// The numbers of the two machines of a pair. A single machine has number 0.
const (
	firstHost = 1
	peerHost  = 2
)

type stdio struct {
	in       io.Reader
	out, err io.Writer
	signals  <-chan os.Signal // SIGQUIT, for the program
}

// The limits of the time until the program starts: of one of two machines, for which the other
// waits, and of others.
const (
	pairBootLimit = 90 * time.Second
	bootLimit     = 10 * time.Minute
)
