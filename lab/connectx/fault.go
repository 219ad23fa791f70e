//go:build linux

package connectx

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// Faults are caused by the guest itself, so that a test needs no other way to this program: a store
// of a word to the vendor-specific capability of the PCI configuration, by setpci(8) or the file
// config in sysfs. The word's lowest byte is the [Fault], the next its argument, and the upper half
// how often. In a shell, at the offset of faultRegister:
//
//	printf '\x01\0\1\0' | dd of=/sys/bus/pci/devices/0000:01:00.0/config bs=4 seek=17 conv=notrunc

// Fault is a kind of fault.
type Fault uint8

const (
	FaultNone       Fault = iota // ends the faults that are pending
	FaultPortDown                // the link goes down
	FaultPortUp                  // and comes up again
	FaultFirmware                // the firmware answers no more commands, and its health counter stops
	FaultFatal                   // the adapter is disabled, which the driver's health poll finds
	FaultCommand                 // commands fail with the status that is the argument
	FaultCompletion              // requests complete with the syndrome that is the argument
	FaultLost                    // completions are not written
	FaultStorm                   // events that the port is active
	FaultOpcode                  // completions have the argument for an opcode
	FaultQPN                     // completions are of the QP whose number is larger by the argument
	FaultCounter                 // completions are of the request whose index is larger by the argument
	FaultLate                    // completions come later, by the argument in milliseconds
	FaultAfterEvent              // completions come after the next event
)

// faultCapability is the offset of the capability, and faultRegister that of its word.
const (
	faultCapability = 0x40
	faultRegister   = faultCapability + 4
)

// Inject causes a fault, count times where that has a meaning. It runs in the guest, with the
// folder of the adapter's PCI device in sysfs.
func Inject(pciDir string, fault Fault, count uint16) error {
	f, err := os.OpenFile(filepath.Join(pciDir, "config"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte{byte(fault), 0, byte(count), byte(count >> 8)}, faultRegister)
	return errors.Join(err, f.Close())
}

// delayed is what has entries that are late: a CQ.
type delayed interface{ writeLate() }

// faults are those that are pending.
type faults struct {
	any      atomic.Bool // one has been pending: the usual path takes no lock
	mu       sync.Mutex
	pending  map[Fault]fault
	firmware bool      // has ended
	waiting  []delayed // for an event
}

type fault struct {
	arg   byte
	count int
}

// take reports whether a fault is pending, and counts it.
func (f *faults) take(kind Fault) (arg byte, ok bool) {
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

// add makes a fault pending.
func (f *faults) add(kind Fault, arg byte, count int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pending == nil {
		f.pending = map[Fault]fault{}
	}
	f.any.Store(true)
	f.pending[kind] = fault{arg, count}
}

// kill ends the firmware.
func (f *faults) kill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.firmware = true
}

// dead reports whether the firmware has ended.
func (f *faults) dead() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.firmware
}

func (f *faults) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending, f.firmware, f.waiting = nil, false, nil
}

// late reports whether the next entry of a CQ is late, and sees to it that it comes. The CQ is
// locked.
func (f *faults) late(q delayed) bool {
	if ms, ok := f.take(FaultLate); ok {
		time.AfterFunc(time.Duration(ms)*time.Millisecond, q.writeLate)
		return true
	}
	if _, ok := f.take(FaultAfterEvent); ok {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.waiting = append(f.waiting, q)
		return true
	}
	return false
}

// event has the entries written that wait for an event. It may be called with a CQ locked.
func (f *faults) event() {
	if !f.any.Load() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, q := range f.waiting {
		go q.writeLate()
	}
	f.waiting = nil
}
