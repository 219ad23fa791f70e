//go:build linux

package connectx

import (
	"encoding/binary"
	"slices"
	"sync"
)

// configSpace is the PCI configuration.
type configSpace struct {
	mu    sync.Mutex
	bytes [4096]byte
}

// Offsets of capabilities in the PCI configuration.
const (
	capPCIe = 0x60
	capMSIX = 0xb0
)

// init sets the configuration of a ConnectX-6 after reset (PCI Express Base Specification, 7.5).
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

// writable are the ranges of the configuration that can be written.
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

// Offsets in the initialization segment, struct mlx5_init_seg.
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

// initSegment has the variable fields of the initialization segment.
type initSegment struct {
	mu       sync.Mutex
	nicState uint32 // bits 8 to 10 of segCommandsLow: 0 is MLX5_INITIAL_SEG_NIC_INTERFACE_FULL_DRIVER
	counter  uint32 // counts on while the firmware lives (mlx5_core's poll_health)
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

// The only BAR has the initialization segment from its first page on, MSI-X, which the hypervisor
// handles, and a page of doorbells for each UAR.
const (
	barSize   = 32 << 20
	msixTable = 0x2000
	msixPBA   = 0x3000
)

var le = binary.LittleEndian
