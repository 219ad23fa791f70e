//go:build linux

package connectx

import (
	"sync"

	"github.com/goverbs/verbs/lab/internal/pcidev"
	"github.com/goverbs/verbs/lab/vfiouser"
)

// function describes a ConnectX-6.
func function(cfg Config) pcidev.Function {
	f := pcidev.Function{
		Vendor: 0x15b3, Device: 0x101c, // ConnectX Family mlx5Gen Virtual Function
		SubVendor: 0x15b3, SubDevice: 0x0008, BARs: []int{vfiouser.BAR0}, Vectors: vectors, Table: msixTable, PBA: msixPBA,
	}
	if cfg.PF {
		f.Device = 0x101b // ConnectX-6
	}
	if cfg.InfiniBand {
		f.Subclass = 0x07
	}
	return f
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
