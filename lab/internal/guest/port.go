//go:build linux

package guest

import (
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/lab/internal/job"
)

// openPort opens a port by name: a virtio-serial port, or a serial line.
func openPort(name string) (*os.File, error) {
	if os.Getenv(job.UMLVariable) != "" {
		return openLine(slices.Index(job.Ports, name))
	}
	for range 100 {
		if port := findInSysfs("virtio-ports", "name", name); port != "" {
			return os.OpenFile("/dev/"+port, os.O_RDWR, 0)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil, fmt.Errorf("no virtio port %q", name)
}

// openLine opens the serial line of a port, in the guest.
func openLine(port int) (*os.File, error) {
	f, err := os.OpenFile(fmt.Sprintf("/dev/ttyS%d", port), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	raw := unix.Termios{Cflag: unix.CS8 | unix.CREAD | unix.CLOCAL | unix.B38400}
	raw.Cc[unix.VMIN] = 1
	if err := unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, &raw); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return f, nil
}
