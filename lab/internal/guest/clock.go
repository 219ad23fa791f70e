//go:build linux

package guest

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/lab/internal/job"
	"github.com/goverbs/verbs/lab/tsc"
)

// measureClock sleeps, and reports measurements by which the host checks the clock.
func measureClock(port *os.File) error {
	source, err := os.ReadFile("/sys/devices/system/clocksource/clocksource0/current_clocksource")
	if err != nil {
		return err
	}
	if !strings.HasPrefix(string(source), "tsc") {
		return fmt.Errorf("the kernel's clock is %s, not the time stamp counter", strings.TrimSpace(string(source)))
	}
	fmt.Fprintln(port, job.ClockMark)
	start, ticks := time.Now(), tsc.Read()
	sleep := unix.NsecToTimespec(job.ClockSleep.Nanoseconds())
	if err := unix.Nanosleep(&sleep, nil); err != nil {
		return err
	}
	slept, ticked := time.Since(start), tsc.Read()-ticks
	_, err = fmt.Fprintln(port, job.ClockMark, slept.Nanoseconds(), ticked)
	return err
}

// freshen sets the clock and seeds the random numbers, which would otherwise repeat those of other
// machines that were restored from the same state.
func freshen(f job.Fresh) error {
	now := unix.NsecToTimespec(f.Time.UnixNano())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &now); err != nil {
		return os.NewSyscallError("clock_settime", err)
	}
	random, err := os.OpenFile("/dev/urandom", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer random.Close()
	if _, err := random.Write(f.Seed); err != nil {
		return err
	}
	return os.NewSyscallError("RNDRESEEDCRNG", unix.IoctlSetInt(int(random.Fd()), unix.RNDRESEEDCRNG, 0))
}
