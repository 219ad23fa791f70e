//go:build linux

package connectx

// Inject causes a fault, count times where that has a meaning.
func (d *Device) Inject(kind Fault, arg byte, count int) {
	switch kind {
	case FaultNone:
		d.faults.event()
		d.faults.reset()
		d.commands.ring(0) // those that have waited for the firmware
	case FaultPortDown, FaultPortUp:
		d.port.setLink(kind == FaultPortUp)
	case FaultStorm:
		for range count {
			d.port.event(portChangeActive)
		}
	case FaultFirmware:
		d.faults.kill()
	case FaultFatal:
		d.seg.setState(nicDisabled)
		d.commands.quiesce(d.disable)
	case FaultCommand, FaultCompletion, FaultLost, FaultOpcode, FaultQPN, FaultCounter, FaultLate, FaultAfterEvent:
		// mlx5_core of a physical function takes the capability for its gateway to the adapter's
		// memory, and writes a number to the word (lib/pci_vsc.c): how often it is to happen is 0.
		if count > 0 {
			d.faults.add(kind, arg, count)
		}
	}
}
