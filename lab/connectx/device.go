//go:build linux

package connectx

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/goverbs/verbs/internal/netif"
	"github.com/goverbs/verbs/lab/vfiouser"
)

// Config describes an adapter.
type Config struct {
	Name       string
	PF         bool             // a physical function; a virtual one, as in a cloud's machines, if false
	InfiniBand bool             // the link layer; Ethernet, so RoCE v2, if false
	NoNodeGUID bool             // the node GUID is zero, as of a VF to which no administrator has given one
	MAC        net.HardwareAddr // permanent address, of which the GUIDs are made
	Network    netif.Network    // carries RoCE's packets
	Wire       *Wire            // carries Ethernet frames; may be nil

	// Record, if not nil, is called for what happens, by several goroutines and with locks held. It
	// must not call the device.
	Record func(Event)
}

// Device is an adapter in a slot of a virtual machine. It is a [vfiouser.Device].
//
// The connection's goroutine calls Read, Write and Reset, and a doorbell is executed there.
// Commands are executed one after the other by a goroutine of the device, as the driver's accesses
// may not wait for them. Events come from any goroutine of the engine.
type Device struct {
	cfg   Config
	bus   *vfiouser.Bus
	mem   *vfiouser.Memory
	start time.Time

	config   configSpace
	seg      initSegment
	commands commandQueue
	caps     capabilities
	fw       firmwarePages
	eqs      eqTable
	port     port
	res      resources
	eth      ethernet
	faults   faults
	flame    blueFlame
	hca      hcaState // of commands alone
	t        *transport
}

// New makes an adapter that is attached to a bus.
func New(cfg Config, bus *vfiouser.Bus) (*Device, error) {
	if len(cfg.MAC) != 6 {
		return nil, fmt.Errorf("adapter %s: its MAC address %q is not of 6 bytes", cfg.Name, cfg.MAC)
	}
	// A guest has queues in pages of 4 KiB, and all of its memory for physical keys.
	if size := os.Getpagesize(); size != 4096 || strconv.IntSize == 32 {
		return nil, fmt.Errorf("adapter %s: this machine has pages of %d bytes and addresses of %d bits: run it on a kernel with pages of 4096 in a process of 64 bits: %w", cfg.Name, size, strconv.IntSize, errors.ErrUnsupported)
	}
	d := &Device{cfg: cfg, bus: bus, mem: bus.Memory, start: time.Now()}
	d.eqs.d, d.res.d, d.eth.flow.e = d, d, &d.eth
	d.flame.d, d.flame.wait = d, flameWait
	d.config.init(cfg)
	d.caps.init(cfg)
	d.port.init(cfg) // has the GUID
	t, err := newTransport(d)
	if err != nil {
		return nil, fmt.Errorf("adapter %s: %w", cfg.Name, err)
	}
	d.t = t
	d.eth.init(d)
	d.commands.begin(d)
	return d, nil
}

// Close ends the adapter. The connection must have ended.
func (d *Device) Close() error {
	d.eth.end()
	d.commands.end()
	d.reset()
	return d.t.close()
}

// Reset is a function level reset: everything that the driver made is gone.
func (d *Device) Reset() {
	d.record(Event{Kind: RecordReset})
	d.commands.quiesce(func() {
		d.config.init(d.cfg)
		d.reset()
	})
	d.seg.setState(0)
}

// reset is what comes after a reset of the adapter and of its firmware. No command is being executed.
func (d *Device) reset() {
	d.commands.unmap()
	d.faults.reset()
	d.disable()
}

// disable ends the driver's use of the firmware. No command is being executed, but this one.
func (d *Device) disable() {
	d.hca = hcaDisabled
	d.release()
	d.caps.init(d.cfg)
	d.fw.reset()
}

// release removes all objects.
func (d *Device) release() {
	d.flame.reset()
	d.eth.reset()
	d.t.reset()
	d.eqs.clear((*eq).close)
	d.port.init(d.cfg)
	d.res.reset()
}

// pages maps a list of pages of 1<<shift bytes, as a command has it at the end of its input. The
// lower bits of each address must be zero, except for those in flags.
func (d *Device) pages(list []byte, count, shift int, flags uint64) (*vfiouser.View, status) {
	if count <= 0 || count > len(list)/8 {
		return nil, statusBadInpLenErr
	}
	if shift < 12 || shift > 30 {
		return nil, statusBadParamErr
	}
	addrs := make([]uint64, count)
	for i := range addrs {
		a := be.Uint64(list[i*8:]) &^ flags
		if a&(1<<shift-1) != 0 {
			return nil, statusBadParamErr
		}
		addrs[i] = a
	}
	v, err := d.mem.Pages(addrs, 1<<shift)
	if err != nil {
		return nil, statusBadParamErr
	}
	return v, statusOk
}

// doorbellRecord maps a doorbell record: two big endian words at an address of eight bytes' alignment, of
// which the view has the first at the offset that is returned.
func (d *Device) doorbellRecord(addr uint64) (v *vfiouser.View, off int, st status) {
	if addr%8 != 0 {
		return nil, 0, statusBadParamErr
	}
	v, err := d.mem.Pages([]uint64{addr &^ 0xfff}, 4096)
	if err != nil {
		return nil, 0, statusBadParamErr
	}
	return v, int(addr & 0xfff), statusOk
}

// clock is the adapter's timer, which counts nanoseconds.
func (d *Device) clock() uint64 { return uint64(time.Since(d.start).Nanoseconds()) }

// configSpace is the PCI configuration.
type configSpace struct {
	mu    sync.Mutex
	bytes [4096]byte
}
