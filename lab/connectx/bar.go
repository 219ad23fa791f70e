//go:build linux

package connectx

import (
	"encoding/binary"
	"slices"
	"sync"

	"github.com/goverbs/verbs/lab/vfiouser"
)

var le = binary.LittleEndian

// The only BAR has the initialization segment in its first page, MSI-X (of which the hypervisor
// takes care), and a page of doorbells for each UAR.
const (
	barSize   = 32 << 20
	msixTable = 0x2000
	msixPBA   = 0x3000
)

// Places in a UAR (libmlx5's wqe.h and cq.c, mlx5_core's eq.c).
const (
	uarCQ    = 0x20
	uarEQArm = 0x40
	uarEQ    = 0x48
	uarSend  = 0x800 // the registers of send queues: see blueFlame
)

// Places in the initialization segment, struct mlx5_init_seg.
const (
	segFirmware      = 0x000
	segInterface     = 0x004
	segCommandsHigh  = 0x010
	segCommandsLow   = 0x014
	segDoorbell      = 0x018
	segHealth        = 0x200
	segHealthEnd     = 0x240
	segTimerHigh     = 0x1000
	segTimerLow      = 0x1004
	segHealthCounter = 0x1010
)

const (
	firmwareMajor, firmwareMinor, firmwareSub = 20, 31, 1010
	commandInterface                          = 5
)

// initSegment is what the initialization segment holds.
type initSegment struct {
	mu       sync.Mutex
	nicState uint32 // bits 8 to 10 of segCommandsLow: 0 is the driver's, 1 disabled
	counter  uint32 // shows that the firmware lives
	health   [segHealthEnd - segHealth]byte
}

func (s *initSegment) setState(nic uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nicState = nic
}

const (
	nicStateMask = 0x700
	nicDisabled  = 0x100
)

// Regions describes the regions by VFIO's index: BAR 0 and the configuration.
func (d *Device) Regions() map[int]uint64 {
	return map[int]uint64{vfiouser.BAR0: barSize, vfiouser.Config: uint64(len(d.config.bytes))}
}

// Vectors returns the number of MSI-X vectors.
func (d *Device) Vectors() int { return vectors }

// Read answers a load.
func (d *Device) Read(region int, off uint64, b []byte) {
	if region == vfiouser.Config {
		d.config.read(off, b)
		return
	}
	// Loads are of aligned words or, for the timer, two.
	clear(b)
	for i := 0; i+4 <= len(b) && off%4 == 0; i += 4 {
		be.PutUint32(b[i:], d.readWord(off+uint64(i)))
	}
}

func (d *Device) readWord(off uint64) uint32 {
	s := &d.seg
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case off == segFirmware:
		return firmwareMinor<<16 | firmwareMajor
	case off == segInterface:
		return commandInterface<<16 | firmwareSub
	case off == segCommandsHigh:
		return uint32(d.commands.address() >> 32)
	case off == segCommandsLow:
		return uint32(d.commands.address()) | s.nicState | logCommands<<4 | logCommandStride
	case off >= segHealth && off < segHealthEnd:
		return be.Uint32(s.health[off-segHealth:])
	case off == segTimerHigh:
		return uint32(d.clock() >> 32)
	case off == segTimerLow:
		return uint32(d.clock())
	case off == segHealthCounter:
		if !d.faults.dead() {
			s.counter++
		}
		return s.counter
	}
	return 0
}

// Write takes a store.
func (d *Device) Write(region int, off uint64, b []byte) {
	if region == vfiouser.Config {
		d.config.write(off, b)
		if off == faultRegister && len(b) == 4 {
			d.Inject(Fault(b[0]), b[1], int(le.Uint16(b[2:])))
		}
		return
	}
	if off >= firstUAR<<12 {
		d.doorbell(uint32(off>>12), int(off&0xfff), b)
		return
	}
	if len(b) != 4 || off%4 != 0 {
		return
	}
	switch v := be.Uint32(b); off {
	case segCommandsHigh:
		d.commands.setAddress(0xffffffff<<32, uint64(v)<<32)
	case segCommandsLow:
		d.commands.setAddress(0xfffff000, uint64(v))
		d.seg.setState(v & nicStateMask)
		if v&nicStateMask == nicDisabled { // how mlx5_core gives up an adapter that has failed
			d.commands.quiesce(d.disable)
		}
	case segDoorbell:
		d.commands.ring(v)
	}
}

// doorbell takes a store to a UAR.
func (d *Device) doorbell(uar uint32, off int, b []byte) {
	d.record(Event{Kind: RecordDoorbell, Number: uar, Offset: off, In: b})
	if !d.res.uars.has(uar) || len(b) < 4 {
		return
	}
	switch {
	case off == uarEQArm, off == uarEQ:
		d.eqs.doorbell(uar, be.Uint32(b), off == uarEQArm)
	case off == uarCQ && len(b) == 8:
		d.t.cqs.arm(uar, be.Uint32(b), be.Uint32(b[4:]))
	case off >= uarSend:
		d.flame.store(uar, off, b)
	}
}

// Offsets of capabilities in the PCI configuration.
const (
	capPCIe = 0x60
	capMSIX = 0xb0
)

// init makes the configuration of a ConnectX-6 after reset (PCI Express Base Specification, 7.5).
func (c *configSpace) init(cfg Config) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.bytes[:]
	clear(b)
	le.PutUint16(b, 0x15b3)
	le.PutUint16(b[2:], 0x101c) // ConnectX Family mlx5Gen Virtual Function
	if cfg.PF {
		le.PutUint16(b[2:], 0x101b) // ConnectX-6
	}
	b[0x06] = 0x10 // has capabilities
	b[0x0b] = 0x02 // network controller: Ethernet
	if cfg.InfiniBand {
		b[0x0a] = 0x07
	}
	b[0x10] = 0xc // BAR 0: 64 bits, prefetchable
	le.PutUint16(b[0x2c:], 0x15b3)
	le.PutUint16(b[0x2e:], 0x0008)
	b[0x34] = capPCIe
	b[capPCIe], b[capPCIe+1] = 0x10, capMSIX
	le.PutUint16(b[capPCIe+2:], 2)                // version 2, endpoint
	le.PutUint32(b[capPCIe+4:], 1<<28|1<<15|2)    // function level reset, role-based errors, payloads of 512
	le.PutUint32(b[capPCIe+0xc:], 16<<4|3)        // 16 lanes of 8 GT/s
	le.PutUint16(b[capPCIe+0x12:], 1<<12|16<<4|3) // the link
	b[capMSIX], b[capMSIX+1] = 0x11, faultCapability
	b[faultCapability], b[faultCapability+2] = 0x09, 8 // vendor-specific, with its length
	le.PutUint16(b[capMSIX+2:], vectors-1)
	le.PutUint32(b[capMSIX+4:], msixTable)
	le.PutUint32(b[capMSIX+8:], msixPBA)
}

// writable are the bytes of the configuration that keep what is written.
var writable = [][2]int{
	{0x04, 0x06}, {0x10, 0x18}, {0x3c, 0x3d}, // command, BAR 0, interrupt line
	{capPCIe + 8, capPCIe + 10}, {capMSIX + 2, capMSIX + 4},
}

func (c *configSpace) read(off uint64, b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	copy(b, c.bytes[off:])
}

func (c *configSpace) write(off uint64, b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, v := range b {
		at := int(off) + i
		if slices.ContainsFunc(writable, func(r [2]int) bool { return at >= r[0] && at < r[1] }) {
			c.bytes[at] = v
		}
	}
}
