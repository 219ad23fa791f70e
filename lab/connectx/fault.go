//go:build linux

package connectx

import "github.com/goverbs/verbs/lab/internal/pcidev"

// Fault is a kind of fault.
type Fault = pcidev.Fault

// See package pcidev for what they do.
const (
	FaultNone       = pcidev.FaultNone
	FaultPortDown   = pcidev.FaultPortDown
	FaultPortUp     = pcidev.FaultPortUp
	FaultFirmware   = pcidev.FaultFirmware
	FaultFatal      = pcidev.FaultFatal
	FaultCommand    = pcidev.FaultCommand
	FaultCompletion = pcidev.FaultCompletion
	FaultLost       = pcidev.FaultLost
	FaultStorm      = pcidev.FaultStorm
	FaultOpcode     = pcidev.FaultOpcode
	FaultQPN        = pcidev.FaultQPN
	FaultCounter    = pcidev.FaultCounter
	FaultLate       = pcidev.FaultLate
	FaultAfterEvent = pcidev.FaultAfterEvent
	FaultLoss       = pcidev.FaultLoss
)

// Inject injects a fault, count times if it can repeat. It runs in the guest; pciDir is the directory of
// the adapter's PCI device in sysfs.
func Inject(pciDir string, fault Fault, count uint16) error {
	return pcidev.Inject(pciDir, fault, count)
}
