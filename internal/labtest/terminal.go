//go:build linux

package labtest

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Terminal returns a pseudo-terminal with a number of columns, and its master, from which a test reads
// the terminal's output.
func Terminal(t testing.TB, columns int) (master, terminal *os.File) {
	t.Helper()
	master = Must(os.OpenFile("/dev/ptmx", os.O_RDWR, 0))(t)
	t.Cleanup(func() { master.Close() })
	n := Must(unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN))(t)
	Check(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	terminal = Must(os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0))(t)
	t.Cleanup(func() { terminal.Close() })
	Check(t, unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: uint16(columns)}))
	return master, terminal
}
