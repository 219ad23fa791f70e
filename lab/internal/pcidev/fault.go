//go:build linux

package pcidev

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// A guest injects faults itself, so that a test needs no channel to this program: it stores a word to
// the vendor-specific capability of the PCI configuration, by setpci(8) or the file config in sysfs.
// The lowest byte of the word is the [Fault], the next its argument, and the upper half the count. In a
// shell, at the offset of FaultRegister:
//
//	printf '\1\0\1\0' | dd of=/sys/bus/pci/devices/0000:01:00.0/config bs=4 seek=17 conv=notrunc

// Fault is a kind of fault.
type Fault uint8

const (
	FaultNone       Fault = iota // ends the pending faults
	FaultPortDown                // the link goes down
	FaultPortUp                  // the link comes up
	FaultFirmware                // the firmware answers no more commands, and its health counter stops
	FaultFatal                   // the adapter is disabled, as the driver's poll_health finds
	FaultCommand                 // commands fail; the argument is the status
	FaultCompletion              // requests fail; the argument is the syndrome
	FaultLost                    // completions are not written
	FaultStorm                   // events that the port is active
	FaultOpcode                  // completions have the argument as opcode
	FaultQPN                     // completions name the QP with a number larger by the argument
	FaultCounter                 // completions name the request with an index larger by the argument
	FaultLate                    // completions come late, by the argument in milliseconds
	FaultAfterEvent              // completions come after the next event
	FaultLoss                    // one of count packets that are sent is lost, by chance, until another count
)

// FaultCapability is the offset of the capability, and FaultRegister that of its word.
const (
	FaultCapability = 0x40
	FaultRegister   = FaultCapability + 4
)

// Inject injects a fault, count times if it can repeat. It runs in the guest; pciDir is the directory of
// the adapter's PCI device in sysfs.
func Inject(pciDir string, fault Fault, count uint16) error {
	f, err := os.OpenFile(filepath.Join(pciDir, "config"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte{byte(fault), 0, byte(count), byte(count >> 8)}, FaultRegister)
	return errors.Join(err, f.Close())
}

// Faults are the pending faults.
type Faults struct {
	any     atomic.Bool // one has been pending: without, Take needs no lock
	Dead    atomic.Bool // the firmware answers no more
	mu      sync.Mutex
	pending map[Fault]fault
	waiting []func() // write entries that wait for an event
}

type fault struct {
	arg   byte
	count int
}

// Take reports whether a fault is pending, and uses up one of its count.
func (f *Faults) Take(kind Fault) (arg byte, ok bool) {
	if !f.any.Load() {
		return 0, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.pending[kind]
	if p.count == 0 {
		return 0, false
	}
	p.count--
	f.pending[kind] = p
	return p.arg, true
}

// Add makes a fault pending.
func (f *Faults) Add(kind Fault, arg byte, count int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pending == nil {
		f.pending = map[Fault]fault{}
	}
	f.any.Store(true)
	f.pending[kind] = fault{arg, count}
}

// Reset ends all faults.
func (f *Faults) Reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending, f.waiting = nil, nil
	f.Dead.Store(false)
}

// Late reports whether the next entry of a CQ is to be late, and arranges for a call of write. The CQ is
// locked.
func (f *Faults) Late(write func()) bool {
	if ms, ok := f.Take(FaultLate); ok {
		time.AfterFunc(time.Duration(ms)*time.Millisecond, write)
		return true
	}
	if _, ok := f.Take(FaultAfterEvent); ok {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.waiting = append(f.waiting, write)
		return true
	}
	return false
}

// Event writes the entries that wait for an event. It may be called with a CQ locked.
func (f *Faults) Event() {
	if !f.any.Load() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, write := range f.waiting {
		go write()
	}
	f.waiting = nil
}
