//go:build linux

package guest

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// warmUp makes the kernel patch itself before other processors run, as it does at the
// first use of TCP, which siw uses, and of UDP encapsulation, by which rxe receives.
func warmUp() error {
	if err := LinkUp("lo"); err != nil {
		return err
	}
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue // there is no IPv6
		}
		if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
			c.Close()
		}
		l.Close()
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if fd, err := unix.Socket(family, unix.SOCK_DGRAM, 0); err == nil {
			unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_ENCAP, unix.UDP_ENCAP_ESPINUDP)
			unix.Close(fd)
		}
	}
	time.Sleep(20 * time.Millisecond) // a kernel worker does the patching
	return nil
}

// onlineCPUs brings up the processors that are offline.
func onlineCPUs() error {
	// A new one measures its speed by the clock's ticks, which stop when all are idle.
	var up atomic.Bool
	go func() {
		for !up.Load() {
		}
	}()
	defer up.Store(true)
	files, err := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/online")
	for _, f := range files {
		err = errors.Join(err, os.WriteFile(f, []byte("1"), 0))
	}
	return err
}
