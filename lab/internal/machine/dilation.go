//go:build linux

package machine

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"sync"
	"time"

	"github.com/goverbs/verbs/lab/internal/job"
	"github.com/goverbs/verbs/lab/tsc"
)

const faketimeLib = "/usr/lib/*/faketime/libfaketimeMT.so.1"

// Dilated is the accelerator with slower time: QEMU runs under libfaketime, so all clocks and timers
// that it emulates are slower than this machine's by a factor, and the emulated processors seem faster
// by that factor. The time stamp counter is this machine's: a kernel parameter multiplies its
// frequency.
const Dilated = "dilated"

// dilation holds the settings that slow a machine's time down.
type dilation struct {
	env    []string // of QEMU
	kernel string   // parameters
}

func newDilation(factor float64) (dilation, error) {
	found, _ := filepath.Glob(faketimeLib)
	if len(found) == 0 {
		return dilation{}, errors.New("--accel dilated needs libfaketime: apt-get install faketime")
	}
	return dilation{
		env: []string{"LD_PRELOAD=" + found[0], fmt.Sprintf("FAKETIME=+0 x%.9f", 1/factor), "NO_FAKE_STAT=1"},
		// Timer interrupts are late by the time stamp counter, so the kernel must neither
		// check the timer nor calibrate the delay loop with it.
		kernel: fmt.Sprintf(" tsc_early_khz=%.0f tsc=reliable no_timer_check lpj=1000000", ticksPerSecond()*factor/1e3),
	}, nil
}

// ticksPerSecond returns the frequency of this machine's time stamp counter.
var ticksPerSecond = sync.OnceValue(func() float64 {
	start, ticks := time.Now(), tsc.Read()
	time.Sleep(200 * time.Millisecond)
	return float64(tsc.Read()-ticks) / time.Since(start).Seconds()
})

// clockCheck compares the guest's clock with this machine's.
type clockCheck struct {
	factor float64
	start  time.Time
}

// mark handles a line from the guest.
func (c *clockCheck) mark(line string) error {
	var slept, ticks float64
	if n, _ := fmt.Sscanf(line, job.ClockMark+" %f %f\n", &slept, &ticks); n != 2 {
		c.start = time.Now()
		return nil
	}
	return c.compare(time.Since(c.start).Seconds(), slept/1e9, ticks)
}

// compare checks a sleep that took hostTime seconds of this machine, guestTime seconds of the
// guest, and ticks of its time stamp counter.
func (c *clockCheck) compare(hostTime, guestTime, ticks float64) error {
	for _, f := range []struct {
		of        string
		got, want float64
	}{
		{"clock", hostTime / guestTime, c.factor},
		{"time stamp counter", ticks / guestTime, ticksPerSecond() * c.factor},
		{"timer", guestTime, job.ClockSleep.Seconds()},
	} {
		if off := f.got/f.want - 1; !(math.Abs(off) <= 0.01) { // or it is no number
			return fmt.Errorf("%w: its %s is off by %.1f %% at factor %g; this machine may be too busy: try a greater LAB_FACTOR", errClock, f.of, 100*off, c.factor)
		}
	}
	return nil
}
