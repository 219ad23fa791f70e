//go:build linux

package connectx

import (
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/lab/internal/pcidev"
	"github.com/goverbs/verbs/lab/vfiouser"
)

// Offsets in a UAR: MLX5_CQ_DOORBELL, mlx5_core's MLX5_EQ_DOORBELL_OFFSET and MLX5_BF_OFFSET.
const (
	uarCQ    = 0x20
	uarEQArm = 0x40
	uarEQ    = 0x48
	uarSend  = 0x800 // registers of send queues: see blueFlame
)

// Regions describes the regions by VFIO's index: BAR 0 and the configuration.
func (d *Device) Regions() map[int]uint64 {
	return map[int]uint64{vfiouser.BAR0: barSize, vfiouser.Config: pcidev.ConfigSize}
}

// Vectors returns the number of MSI-X vectors.
func (d *Device) Vectors() int { return vectors }

// Read handles a load.
func (d *Device) Read(region int, off uint64, b []byte) {
	if region == vfiouser.Config {
		d.config.Read(off, b)
		return
	}
	// The driver loads aligned words or, for the timer, two.
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
		if !d.faults.Dead.Load() {
			s.counter++
		}
		return s.counter
	}
	return 0
}

// Write handles a store.
func (d *Device) Write(region int, off uint64, b []byte) {
	if region == vfiouser.Config {
		if kind, arg, count, ok := d.config.Write(off, b); ok {
			d.Inject(kind, arg, count)
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
		if v&nicStateMask == nicDisabled { // mlx5_core gives up a failed adapter (mlx5_error_sw_reset)
			d.commands.Quiesce(d.disable)
		}
	case segDoorbell:
		d.commands.Doorbell(v)
	}
}

// doorbell handles a store to a UAR.
func (d *Device) doorbell(uar uint32, off int, b []byte) {
	d.record(Event{Kind: RecordDoorbell, Number: uar, Offset: off, In: b})
	if !d.res.uars.Has(uar) || len(b) < 4 {
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

// Inject injects a fault, count times if it can repeat.
func (d *Device) Inject(kind Fault, arg byte, count int) {
	switch kind {
	case FaultNone:
		d.faults.Event()
		d.faults.Reset()
		d.lose(0)
		d.commands.Doorbell(0) // executes commands that have waited for the firmware
	case FaultPortDown, FaultPortUp:
		d.port.setLink(kind == FaultPortUp)
	case FaultLoss:
		d.lose(uint32(count))
	case FaultStorm:
		for range count {
			d.port.event(ifc.PortChangeActive)
		}
	case FaultFirmware:
		d.faults.Dead.Store(true)
	case FaultFatal:
		d.seg.setState(nicDisabled)
		d.commands.Quiesce(d.disable)
	case FaultCommand, FaultCompletion, FaultLost, FaultOpcode, FaultQPN, FaultCounter, FaultLate, FaultAfterEvent:
		// mlx5_core of a physical function takes the capability for the one of its gateway to the
		// adapter's memory, and stores a small number there (lib/pci_vsc.c), with the count 0.
		if count > 0 {
			d.faults.Add(kind, arg, count)
		}
	}
}

// lose makes the network lose one of so many packets, or none if it is 0.
func (d *Device) lose(oneOf uint32) {
	if n, ok := d.cfg.Network.(interface{ Lose(oneOf uint32) }); ok {
		n.Lose(oneOf)
	}
}
