//go:build linux

package pcidev

import (
	"slices"
	"sync"
)

// Function describes a PCI function to its driver.
type Function struct {
	Vendor, Device       uint16
	SubVendor, SubDevice uint16
	Subclass             byte   // of network controllers
	BARs                 []int  // even indexes: a BAR has 64 bits, and is prefetchable
	Vectors              int    // of MSI-X
	Table, PBA           uint32 // of MSI-X: an offset in a BAR, and in the lowest three bits the BAR
}

// Space is the PCI configuration of a function.
type Space struct {
	mu    sync.Mutex
	bytes [ConfigSize]byte
	bars  []int
}

// ConfigSize is the size of the configuration of PCI Express.
const ConfigSize = 4096

// Offsets of capabilities.
const (
	capPCIe = 0x60
	capMSIX = 0xb0
)

// Init sets the configuration after reset (PCI Express Base Specification, 7.5).
func (c *Space) Init(f Function) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bars = f.BARs
	b := c.bytes[:]
	clear(b)
	le.PutUint16(b, f.Vendor)
	le.PutUint16(b[2:], f.Device)
	b[0x06] = 0x10 // has capabilities
	b[0x0a] = f.Subclass
	b[0x0b] = 0x02 // network controller
	for _, i := range f.BARs {
		b[0x10+4*i] = 0xc // 64 bits, prefetchable
	}
	le.PutUint16(b[0x2c:], f.SubVendor)
	le.PutUint16(b[0x2e:], f.SubDevice)
	b[0x34] = capPCIe
	b[capPCIe], b[capPCIe+1] = 0x10, capMSIX
	le.PutUint16(b[capPCIe+2:], 2)                // version 2, endpoint
	le.PutUint32(b[capPCIe+4:], 1<<28|1<<15|2)    // function level reset, role-based errors, payloads of 512
	le.PutUint32(b[capPCIe+0xc:], 16<<4|3)        // 16 lanes of 8 GT/s
	le.PutUint16(b[capPCIe+0x12:], 1<<12|16<<4|3) // the link
	b[capMSIX], b[capMSIX+1] = 0x11, FaultCapability
	b[FaultCapability], b[FaultCapability+2] = 0x09, 8 // vendor-specific, with its length
	le.PutUint16(b[capMSIX+2:], uint16(f.Vectors-1))
	le.PutUint32(b[capMSIX+4:], f.Table)
	le.PutUint32(b[capMSIX+8:], f.PBA)
}

// writable reports whether a byte of the configuration can be written: command, BARs, interrupt line, and
// the control registers of the capabilities.
func (c *Space) writable(at int) bool {
	in := func(from, end int) bool { return at >= from && at < end }
	return in(0x04, 0x06) || in(0x3c, 0x3d) || in(capPCIe+8, capPCIe+10) || in(capMSIX+2, capMSIX+4) ||
		slices.ContainsFunc(c.bars, func(i int) bool { return in(0x10+4*i, 0x18+4*i) })
}

// Read handles a load.
func (c *Space) Read(off uint64, b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	copy(b, c.bytes[off:])
}

// Write handles a store. ok reports whether it injects a fault, see [Fault].
func (c *Space) Write(off uint64, b []byte) (kind Fault, arg byte, count int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, v := range b {
		if c.writable(int(off) + i) {
			c.bytes[int(off)+i] = v
		}
	}
	if off != FaultRegister || len(b) != 4 {
		return 0, 0, 0, false
	}
	return Fault(b[0]), b[1], int(le.Uint16(b[2:])), true
}
