package rdmadev

import (
	"cmp"
	"path/filepath"

	"github.com/goverbs/verbs/internal/nldev"
)

// Source is where devices are read from. The zero value is this machine, as the network
// namespace of the calling thread shows it.
type Source struct {
	// Sys is the folder where sysfs is mounted. Empty means /sys. With any other, nothing
	// is asked over netlink, which would answer for another namespace: containers that
	// mount the host's /sys under another name use this. Nor are devices in user space listed.
	Sys string
	// Filter, if it is not nil, selects devices by their names. Nothing is read of others:
	// with some drivers, reading counters is slow, or fails with a message in the kernel's log.
	Filter func(name string) bool

	// ask, if it is not nil, answers instead of the kernel: in tests.
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
