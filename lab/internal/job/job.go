//go:build linux

// Package job is the protocol between the lab and the guest: jobs, orders and results on one port, and
// the program's streams on the others. Host and guest are one program, so both have the same version.
// The host is always the machine that rdmalab was started on; the machines of a pair have numbers.
package job

import (
	"fmt"
	"net/netip"
	"syscall"
	"time"
)

// SetupFile is the file of the setup in the initramfs.
const SetupFile = "setup.json"

// UMLVariable is the environment variable by which process 1 learns that its kernel is User-mode Linux.
const UMLVariable = "LAB_UML"

// Setup is the guest's configuration for booting. It is in the initramfs.
type Setup struct {
	Release  string
	Modules  string   // path of the kernel's modules on the host; none for User-mode Linux
	Early    []string // module files in the initramfs, in loading order
	Late     []string // module files that are loaded from the host's root, relative to Modules
	Probe    bool     // only check that the kernel boots
	Userland bool     // another userland hides the host's programs
	Number   int      // 1 or 2 with --peer, as in VERBS_HOST; 0 if there is one machine
}

// OwnFolders are the folders where the guest has a tmpfs of its own, empty at first. It hides the host's
// files there, and what a program writes is not in Result.Files.
var OwnFolders = []string{"/dev/shm", "/run"}

// Job describes the guest's work. The guest gets it when it is ready.
type Job struct {
	Setup
	Args     []string
	Env      []string
	Dir      string
	Write    string     // of --write
	Stdin    bool       // the program has input
	Keep     []string   // paths whose files are sent to the host
	Shared   bool       // other programs will run on this machine
	Dilated  bool       // check the clock
	Restored *Fresh     // set if the machine was restored from a saved state, not booted
	Adapters []Adapter  // plugged in while the machine runs
	UDP      netip.Addr // of --udp
}

// Adapter is an emulated adapter of a machine.
type Adapter struct {
	Device string // the name that it gets
	GUID   string // of its system image, as sysfs shows it
	MAC    string // of its network link; empty on InfiniBand
}

// Order is what the host sends to the guest: a job, or a signal for its program.
type Order struct {
	Job    *Job
	Signal int
}

// Reports of the guest: it can take a job, it is about to run the program, the program has ended.
const (
	Ready   = "ready\n"
	Started = "started\n"
	Ended   = "ended\n"
)

// Result is the guest's report of a program's end. The guest then waits for an order.
type Result struct {
	Exit       int
	Out, Err   int64    // bytes that the program wrote
	Error      string   // the lab's own failure inside the guest
	Warnings   []string // lines of the kernel's log that report a bug of its own
	Files      []Kept   // files at the paths of Job.Keep, in their order
	Lost, Left []string // items of a shared machine's inventory that are gone, or new, such as expected warnings
}

// Kept has the files that a program has written at a path: a file, or the files in a folder by their
// names there. The guest cannot name another path.
type Kept struct {
	File   []byte
	Folder map[string][]byte
}

// ExitStatus returns the exit status of a program that has ended. As in a shell, it is 128
// plus the number of a signal.
func ExitStatus(s syscall.WaitStatus) int {
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
}

// ExitLab is the exit status for failures of the lab itself.
const ExitLab = 125

// ExitCode returns the exit status of the lab's own commands.
func ExitCode(err error) int {
	if err != nil {
		return ExitLab
	}
	return 0
}

// ClockSleep is how long the guest sleeps, by its own clock, for the check of the clock.
const ClockSleep = 50 * time.Millisecond

// ClockMark begins the lines that the guest writes before it sleeps, and afterwards with
// its measurements.
const ClockMark = "clock"

// Fresh has the time and random numbers for a machine that has been restored.
type Fresh struct {
	Time time.Time
	Seed []byte // of the kernel's random numbers
}

// Wires are the wires between two machines, by the name of the links on both.
var Wires = []string{rxeWire, siwWire, ControlWire}

const (
	rxeWire     = "w0"
	siwWire     = "w1"
	ControlWire = "c0"
)

// MAC returns the MAC address of the card on a wire (an index of Wires) of the machine with a number.
func MAC(wire, number int) string { return fmt.Sprintf("52:54:00:09:%02x:%02x", wire, number) }
