//go:build linux

package main

import (
	"net/netip"
	"syscall"
	"time"
)

// setupFile is the file of the setup in the initramfs.
const setupFile = "setup.json"

// umlVariable is set in User-mode Linux, for process 1.
const umlVariable = "LAB_UML"

// setup is what the guest knows when it boots. It is in the initramfs.
type setup struct {
	Release  string
	Modules  string   // path of the kernel's modules on the host; none for User-mode Linux
	Early    []string // module files in the initramfs, in loading order
	Late     []string // module files that are loaded from the host's root, relative to Modules
	Probe    bool     // only check that the kernel boots
	Userland bool     // programs are shared that hide the host's
	Host     int      // which of two machines this is; 0 if there is no other
}

// job describes the guest's work. The guest gets it when it is ready.
type job struct {
	setup
	Args     []string
	Env      []string
	Dir      string
	Write    string     // of --write
	Stdin    bool       // the program has input
	Keep     []string   // paths at which files that the program writes are kept
	Shared   bool       // other programs will run on this machine
	Dilated  bool       // check the clock
	Restored *fresh     // set if the machine was saved
	Adapters []adapter  // that are plugged in when the machine runs, in their order
	UDP      netip.Addr // of --udp
}

// adapter is an emulated adapter of a machine.
type adapter struct {
	GUID       string // of its system image, as sysfs shows it
	InfiniBand bool
}

// order is what the host sends to the guest: a job, or a signal for its program.
type order struct {
	Job    *job
	Signal int
}

// What the guest reports when it can take a job, before it runs the program, and when that has ended.
const (
	ready   = "ready\n"
	started = "started\n"
	ended   = "ended\n"
)

// result is the guest's report of a program's end. The guest then waits for an order.
type result struct {
	Exit       int
	Out, Err   int64    // bytes that the program wrote
	Error      string   // the lab's own failure inside the guest
	Kernel     []string // warnings in the kernel's log
	Files      []kept   // what the program wrote at the paths of job.Keep, in their order
	Lost, Left []string // what is no longer there, or is new, on a machine that is shared
}

// kept is what a program has written at a path that is kept: a file, or the files in a folder, by their
// names there. A guest names no other path.
type kept struct {
	File   []byte
	Folder map[string][]byte
}

// exitStatus returns the exit status of a program that has ended. As in a shell, it is 128
// plus the number of a signal.
func exitStatus(s syscall.WaitStatus) int {
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
}

// exitLab is the exit status for failures of the lab itself.
const exitLab = 125

func exitCode(err error) int {
	if err != nil {
		return exitLab
	}
	return 0
}

// clockSleep is how long the guest sleeps, by its own clock, for the check of the clock.
const clockSleep = 50 * time.Millisecond

// clockMark begins the lines that the guest writes before it sleeps, and afterwards with
// its measurements.
const clockMark = "clock"

// fresh is what a machine needs that has not booted by itself but has been restored.
type fresh struct {
	Time time.Time
	Seed []byte // of the kernel's random numbers
}
