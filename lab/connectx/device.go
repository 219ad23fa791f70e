//go:build linux

package connectx

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/goverbs/verbs/lab/internal/pcidev"
	"github.com/goverbs/verbs/lab/vfiouser"
)

// Device is an adapter in a slot of a virtual machine. It is a [vfiouser.Device].
//
// The connection's goroutine calls Read, Write and Reset, and executes doorbells: it sends the packets
// of a request itself. If the rest of a BlueFlame request is late, its timer does. A goroutine of the
// device executes commands one at a time, so that the guest's processor, which waits for each access
// to the BAR, does not wait for a command. Completions and events come from any of these, from the
// goroutines of the engine that receive packets, and from the flusher.
type Device struct {
	cfg Config
	env

	config   pcidev.Space
	seg      initSegment
	commands commandQueue
	caps     capabilities
	fw       firmwarePages
	eqs      eqTable
	port     port
	res      resources
	eth      ethernet
	flame    blueFlame
	hca      hcaState // of commands alone
	t        *transport
}

// New makes an adapter that is attached to a bus.
func New(cfg Config, bus *vfiouser.Bus) (*Device, error) {
	if len(cfg.MAC) != 6 {
		return nil, fmt.Errorf("adapter %s: MAC address %q does not have 6 bytes", cfg.Name, cfg.MAC)
	}
	// Queues are in the guest's pages of 4 KiB, each of which is mapped here, and physical keys map
	// all of its memory at once.
	if size := os.Getpagesize(); size != 4096 || strconv.IntSize == 32 {
		return nil, fmt.Errorf("adapter %s: this machine has pages of %d bytes and addresses of %d bits: use a kernel with pages of 4096 bytes and a 64-bit process: %w", cfg.Name, size, strconv.IntSize, errors.ErrUnsupported)
	}
	d := &Device{cfg: cfg, env: env{mem: bus.Memory, interrupt: bus.Interrupt, recorder: cfg.Record, start: time.Now()}}
	d.res.caps = &d.caps
	d.eqs = eqTable{env: &d.env, caps: &d.caps, uars: &d.res.uars}
	d.port.eqs = &d.eqs
	d.flame.send, d.flame.wait = d.send, flameWait
	d.config.Init(function(cfg))
	d.caps.init(cfg)
	d.port.init(cfg) // has the GUID
	t, err := newTransport(cfg, d.port.guid, &d.env, &d.caps, &d.res.uars, &d.eqs)
	if err != nil {
		return nil, fmt.Errorf("adapter %s: %w", cfg.Name, err)
	}
	d.t = t
	d.eth = ethernet{env: &d.env, caps: &d.caps, uars: &d.res.uars, tds: &d.res.tds, cqs: &t.cqs, keys: &t.mkeys, port: &d.port}
	d.eth.flow.tirs = &d.eth.tirs
	if cfg.Wire != nil && !cfg.InfiniBand {
		d.eth.attach(cfg.Wire, cfg.MAC)
	}
	d.commands = commandQueue{env: &d.env, eqs: &d.eqs, execute: d.execute}
	d.commands.begin()
	return d, nil
}

// Close ends the adapter. Its connection must have ended.
func (d *Device) Close() error {
	d.eth.detach()
	d.commands.End()
	d.reset()
	return d.t.close()
}

// Reset performs a function level reset: it removes everything that the driver made.
func (d *Device) Reset() {
	d.record(Event{Kind: RecordReset})
	d.commands.Quiesce(func() {
		d.config.Init(function(d.cfg))
		d.reset()
	})
	d.seg.setState(0)
}

// reset brings the adapter and its firmware to the state after power-up. No command may be running.
func (d *Device) reset() {
	d.commands.unmap()
	d.faults.Reset()
	d.lose(0)
	d.disable()
}

// disable ends the driver's use of the firmware. No other command may be running.
func (d *Device) disable() {
	d.hca = hcaDisabled
	d.release()
	d.caps.init(d.cfg)
	d.fw = nil
}

// release removes all objects, users first.
func (d *Device) release() {
	d.flame.reset()
	d.eth.reset()
	d.t.reset()
	d.eqs.clear((*eq).close)
	d.port.init(d.cfg)
	d.res.reset()
}

// send handles the doorbell of a send queue. b is the start of a request or all of it, and names the
// queue; one limits the doorbell to that request, however many the doorbell record counts.
func (d *Device) send(uar uint32, b []byte, one bool) {
	num := be.Uint32(b[ctrlQPNDS:]) >> 8
	// Each process maps only UARs of its own: a queue of another UAR is another process's.
	if q, ok := d.eth.sqs.Get(num); ok && q.uar == uar {
		d.eth.doorbell(q, b, one)
	} else if q, ok := d.t.qps.Get(num); ok && q.uar == uar && q.sq.Count > 0 {
		q.doorbell(b, one)
	}
}
