package rdmadev

import (
	"cmp"
	"path/filepath"

	"github.com/goverbs/verbs/internal/nldev"
)

// Source is the place from which devices are read. The zero value is this machine, as the network
// namespace of the calling thread shows it.
type Source struct {
	// Sys is the folder where sysfs is mounted; empty means /sys. Containers that mount the host's
	// /sys under another name set it. With another folder netlink is not used, as it would answer
	// for another namespace, and devices in user space are not listed.
	Sys string
	// Filter, if it is not nil, selects devices by name. Other devices are not read: with some
	// drivers reading counters is slow, or fails with a message in the kernel's log.
	Filter func(name string) bool

	// ask, if it is not nil, answers in place of the kernel, for tests.
	ask func(cmd int, dump bool, request nldev.Attrs, each func(nldev.Attrs) error) error
}

// class returns the path of something in /sys/class.
func (s Source) class(elem ...string) string {
	return filepath.Join(append([]string{cmp.Or(s.Sys, "/sys"), "class"}, elem...)...)
}

// Devices returns the devices of this machine in order of their names. Without RDMA there
// are none, and no error.
func Devices() ([]Device, error) { return Source{}.Devices() }

// Find returns the device of this machine with a name. If there is none, the error matches
// [verbs.ErrNoDevice].
func Find(name string) (Device, error) { return Source{}.Find(name) }
