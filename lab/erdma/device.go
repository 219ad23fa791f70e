//go:build linux

package erdma

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/internal/netif"
	"github.com/goverbs/verbs/lab/internal/pcidev"
	"github.com/goverbs/verbs/lab/vfiouser"
)

var le, be = binary.LittleEndian, binary.BigEndian

// Config describes an adapter.
type Config struct {
	Name    string
	RoCE    bool             // RoCE v2 mode; iWARP mode if false
	MAC     net.HardwareAddr // of the network link that the adapter belongs to, by which the driver finds it
	Network netif.Network    // carries packets to other adapters
	Links   *Links           // of the adapters on a network

	// Record, if not nil, is called for each event, on a line of text, by several goroutines and with
	// locks held. It must not call the device.
	Record func(string)
}

// BAR 0 has registers and pages of doorbells, BAR 2 MSI-X.
const (
	bar0Size = 4 << 20
	bar2     = 2
	bar2Size = 16 << 10
	msixPBA  = 8 << 10
	vectors  = 8
)

// Registers, ERDMA_REGS_*.
const (
	regVersion     = 0x00
	regProtocol    = 0x0c // enum erdma_proto_type
	regControl     = 0x10
	regStatus      = 0x14
	regMACLow      = 0x18
	regMACHigh     = 0x1c
	regCommandSQ   = 0x20 // an address, the lower half first
	regCommandCQ   = 0x28
	regDepth       = 0x30
	regEQDepth     = 0x34
	regCommandEQ   = 0x38
	regAEQ         = 0x40
	regAEQDepth    = 0x48
	regAEQDoorbell = 0x50
	regEQDoorbells = 0x100
	regCommandDB   = 0x200
	regCommandArm  = 0x300
	regEnd         = 0x400

	controlReset, controlInit = 1, 2 // bits of regControl
	statusReset, statusInit   = 1, 2 // bits of regStatus
)

// Device is an adapter in a slot of a virtual machine. It is a [vfiouser.Device].
//
// The connection's goroutine calls Read, Write and Reset, and executes doorbells. A goroutine of the
// device executes commands one at a time. Completions and events come from any of these and from the
// goroutines of the engine.
//
// Locks: the engine holds its lock of a QP when it calls the functions of the QP and of its CQs, which
// take cq.mu and then that of an EQ, or mr.mu; and the locks of tables, of faults and of the bus. Nobody
// who holds one of these calls the engine, but for mr.mu, which is before the engine's locks of regions.
type Device struct {
	cfg       Config
	mem       *vfiouser.Memory
	interrupt func(vector int)
	eng       *engine.Device
	addr      netip.Addr // of the engine in iWARP mode
	faults    pcidev.Faults
	flusher   pcidev.Flusher

	config pcidev.Space
	cmd    commands

	mu     sync.Mutex
	regs   [regEnd]byte
	status uint32
	pages  pages

	eqs    pcidev.Objects[*pcidev.EventQueue] // 0 is that of commands, aeqNum the asynchronous one
	cqs    pcidev.Objects[*cq]
	qps    pcidev.Objects[*qp]
	mrs    pcidev.Objects[*mr]
	ahs    pcidev.Objects[*ah]
	pds    map[uint32]*pd // of commands alone
	mtu    verbs.MTU      // of paths, of commands alone
	guest  pcidev.Physical
	counts counters
}

// New makes an adapter that is attached to a bus.
func New(cfg Config, bus *vfiouser.Bus) (*Device, error) {
	if len(cfg.MAC) != 6 {
		return nil, fmt.Errorf("adapter %s: MAC address %q does not have 6 bytes", cfg.Name, cfg.MAC)
	}
	// As of a ConnectX: the guest's pages are mapped here, and physical keys map all of its memory.
	if size := os.Getpagesize(); size != 4096 || strconv.IntSize == 32 {
		return nil, fmt.Errorf("adapter %s: this machine has pages of %d bytes and addresses of %d bits: use a kernel with pages of 4096 bytes and a 64-bit process: %w", cfg.Name, size, strconv.IntSize, errors.ErrUnsupported)
	}
	d := &Device{cfg: cfg, mem: bus.Memory, interrupt: bus.Interrupt, pds: map[uint32]*pd{}, status: statusReset}
	guid := verbs.GUID{}
	copy(guid[2:], cfg.MAC)
	addr := [16]byte{0: 0xfd, 1: 0xed} // unique on the wire, and no guest's
	copy(addr[10:], cfg.MAC)
	d.addr = netip.AddrFrom16(addr)
	ec := engine.Config{Name: cfg.Name, NodeGUID: guid, Network: cfg.Network, MTU: 5}
	if !cfg.RoCE {
		ec.Addrs = []netip.Addr{d.addr}
	}
	var err error
	if d.eng, err = engine.New(ec); err != nil {
		return nil, fmt.Errorf("adapter %s: %w", cfg.Name, err)
	}
	d.config.Init(function)
	d.mtu = defaultMTU
	d.cmd.d = d
	d.cmd.Commands = pcidev.Commands{Execute: d.cmd.executeAll, Dead: d.faults.Dead.Load}
	d.cmd.Begin()
	return d, nil
}

// function is an elastic RDMA adapter.
var function = pcidev.Function{
	Vendor: 0x1ded, Device: 0x107f, SubVendor: 0x1ded, SubDevice: 0x107f,
	BARs: []int{vfiouser.BAR0, bar2}, Vectors: vectors, Table: bar2, PBA: msixPBA | bar2,
}

func (d *Device) record(format string, args ...any) {
	if d.cfg.Record != nil {
		d.cfg.Record(fmt.Sprintf(format, args...))
	}
}

// Close ends the adapter. Its connection must have ended.
func (d *Device) Close() error {
	d.cmd.End()
	d.reset()
	d.flusher.End()
	return d.eng.Close()
}

// Reset performs a function level reset.
func (d *Device) Reset() {
	d.record("function level reset")
	d.cmd.Quiesce(func() {
		d.config.Init(function)
		d.reset()
	})
}

// reset brings the adapter to the state after power-up. No command may be running.
func (d *Device) reset() {
	d.faults.Reset()
	d.cmd.close()
	d.qps.Clear((*qp).destroy)
	d.ahs.Clear(d.endAH)
	if d.cfg.RoCE {
		for _, g := range d.eng.GIDs() {
			d.eng.SetGID(g.Index, netip.Addr{})
		}
	}
	d.cqs.Clear((*cq).destroy)
	d.mrs.Clear((*mr).destroy)
	d.eqs.Clear((*pcidev.EventQueue).Close)
	d.guest.Unmap()
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.regs[:])
	d.pages = pages{}
	d.mtu = defaultMTU
	d.status = statusReset
}

// Regions describes the regions by VFIO's index.
func (d *Device) Regions() map[int]uint64 {
	return map[int]uint64{vfiouser.BAR0: bar0Size, bar2: bar2Size, vfiouser.Config: pcidev.ConfigSize}
}

// Vectors returns the number of MSI-X vectors.
func (d *Device) Vectors() int { return vectors }

// Read handles a load.
func (d *Device) Read(region int, off uint64, b []byte) {
	if region == vfiouser.Config {
		d.config.Read(off, b)
		return
	}
	clear(b)
	if region == vfiouser.BAR0 && len(b) == 4 && off%4 == 0 {
		le.PutUint32(b, d.readRegister(off))
	}
}

func (d *Device) readRegister(off uint64) uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch off {
	case regVersion:
		return 1 // 0 is a function that does not work (erdma_probe_dev)
	case regProtocol:
		if d.cfg.RoCE {
			return 1
		}
		return 0
	case regStatus:
		return d.status
	case regMACLow:
		return be.Uint32(d.cfg.MAC[2:])
	case regMACHigh:
		return uint32(be.Uint16(d.cfg.MAC))
	}
	if off < regEnd {
		return le.Uint32(d.regs[off:])
	}
	return 0
}

// Write handles a store.
func (d *Device) Write(region int, off uint64, b []byte) {
	switch {
	case region == vfiouser.Config:
		if kind, arg, count, ok := d.config.Write(off, b); ok {
			d.Inject(kind, arg, count)
		}
	case region != vfiouser.BAR0 || len(b) != 4 && len(b) != 8 || off%uint64(len(b)) != 0:
	case off >= firstDoorbell:
		if len(b) == 8 {
			d.doorbell(uint32(off>>12), le.Uint64(b))
		}
	case off < regEnd:
		d.writeRegister(off, b)
	}
}

func (d *Device) writeRegister(off uint64, b []byte) {
	d.mu.Lock()
	copy(d.regs[off:], b)
	d.mu.Unlock()
	switch wide := len(b) == 8; {
	case off == regControl && !wide:
		switch le.Uint32(b) {
		case controlReset:
			d.record("reset")
			d.cmd.Quiesce(d.reset)
		case controlInit:
			d.cmd.Quiesce(d.init)
		}
	case off == regCommandDB && wide:
		d.cmd.Doorbell(1)
	case off == regCommandArm && wide:
		d.cmd.arm(uint32(le.Uint64(b)))
	case off == regAEQDoorbell && wide:
		d.eqDoorbell(aeqNum, le.Uint64(b))
	case off >= regEQDoorbells && off < regEQDoorbells+8*vectors && wide:
		d.eqDoorbell(uint32(off-regEQDoorbells)/8, le.Uint64(b))
	}
}

// register returns the value of a register, or of two, the lower half first.
func (d *Device) register(off int) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return le.Uint64(d.regs[off:])
}

// init takes the queues of commands and of asynchronous events into use. If it cannot, the driver waits
// for regStatus in vain (erdma_wait_hw_init_done). No command may be running.
func (d *Device) init() {
	if d.readRegister(regStatus)&statusInit != 0 {
		d.record("init: refused: the adapter has been initialized")
		return
	}
	err := d.cmd.open(d.register(regCommandSQ), d.register(regCommandCQ), uint32(d.register(regDepth)))
	if err == nil {
		err = d.openEQ(0, 0, d.register(regCommandEQ), uint32(d.register(regEQDepth)))
	}
	if err == nil {
		err = d.openEQ(aeqNum, 0, d.register(regAEQ), uint32(d.register(regAEQDepth)))
	}
	d.record("init: %v", err)
	if err != nil {
		d.reset()
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status = statusInit
}

// Inject injects a fault, count times if it can repeat.
func (d *Device) Inject(kind pcidev.Fault, arg byte, count int) {
	d.record("fault %d, argument %d, %d times", kind, arg, count)
	switch kind {
	case pcidev.FaultNone:
		d.faults.Event()
		d.faults.Reset()
		d.cmd.Doorbell(1) // executes commands that have waited for the firmware
	case pcidev.FaultFirmware:
		d.faults.Dead.Store(true)
	case pcidev.FaultFatal: // all connections are lost, and no command is answered any more
		d.faults.Dead.Store(true)
		for _, q := range d.qps.All() {
			q.lose()
		}
	case pcidev.FaultCommand, pcidev.FaultCompletion, pcidev.FaultLost, pcidev.FaultOpcode, pcidev.FaultQPN, pcidev.FaultCounter, pcidev.FaultLate, pcidev.FaultAfterEvent:
		d.faults.Add(kind, arg, max(count, 1))
	}
}

// views maps size bytes of the guest from an offset of a list of blocks on.
func (d *Device) views(blocks []uint64, block uint64, off, size int) (pcidev.Ring, error) {
	v, mem, base, err := pcidev.Map(d.mem, blocks, block, uint64(off), uint64(size))
	if err != nil {
		return pcidev.Ring{}, err
	}
	return pcidev.Ring{View: v, Mem: mem, Start: off - int(base)}, nil
}

// ring maps a ring of count entries.
func (d *Device) ring(blocks []uint64, block uint64, off, count, stride int) (pcidev.Ring, error) {
	if off%stride != 0 {
		return pcidev.Ring{}, fmt.Errorf("a queue at offset %#x of a page: %w", off, errInvalid)
	}
	r, err := d.views(blocks, block, off, count*stride)
	r.Count, r.Stride = uint32(count), stride
	return r, err
}

// record8 checks the address of a doorbell record, 8 bytes that the adapter reads. This one uses the
// values of registers, which the driver stores there too.
func (d *Device) record8(addr uint64) error {
	var b [8]byte
	if addr%8 != 0 {
		return fmt.Errorf("doorbell record at %#x: %w", addr, errInvalid)
	}
	return d.mem.ReadAt(b[:], addr)
}
