package uverbs

import (
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/goverbs/verbs/provider"
)

var errNoTimestamps = fmt.Errorf("the device has no timestamps: %w", errors.ErrUnsupported)

// Clock makes times of the timestamps of a device: it knows which of its cycles was which time of
// the system. It is a value, for any number of goroutines. The two clocks drift apart, by up to
// some 10 µs in a second, until the program gets another Clock.
type Clock struct {
	kHz    uint64
	mask   uint64
	cycles uint64    // of the device, at
	at     time.Time // this time
}

// Clock reads the device's clock and the system's (ibv_query_rt_values_ex(3)).
func (c *Context) Clock() (Clock, error) {
	const op = "read clock of"
	clock := Clock{kHz: c.dev.Attr.CoreClock, mask: c.dev.Attr.TimestampMask}
	err := c.obj.do(op, func() error {
		reader, ok := c.driverContext.(provider.Clock)
		if !ok || clock.kHz == 0 || clock.mask == 0 {
			return errNoTimestamps
		}
		// Of some pairs of readings the one is taken that took least: nothing interrupted it.
		least := time.Duration(1<<63 - 1)
		for range 8 {
			before := time.Now()
			cycles, err := reader.ReadClock()
			took := time.Since(before)
			if err != nil {
				return err
			}
			if took < least {
				least, clock.cycles, clock.at = took, cycles, before.Add(took/2)
			}
		}
		return nil
	})
	if err != nil {
		return Clock{}, err
	}
	return clock, nil
}

// Cycles returns what the device's clock was when the Clock was read.
func (c Clock) Cycles() uint64 { return c.cycles & c.mask }

// Between returns the time from one timestamp to another of the same device, which is negative if that
// is earlier.
func (c Clock) Between(from, to uint64) time.Duration {
	d := (to - from) & c.mask
	if d > c.mask/2 {
		return -c.duration((from - to) & c.mask)
	}
	return c.duration(d)
}

// duration returns the time that cycles take.
func (c Clock) duration(cycles uint64) time.Duration {
	if c.kHz == 0 {
		return 0
	}
	hi, lo := bits.Mul64(cycles, uint64(time.Millisecond))
	if hi >= c.kHz {
		return 1<<63 - 1
	}
	ns, _ := bits.Div64(hi, lo, c.kHz)
	return time.Duration(min(ns, 1<<63-1))
}

// Time returns the system's time of a timestamp. It has a monotonic reading, as that of [time.Now].
func (c Clock) Time(timestamp uint64) time.Time { return c.at.Add(c.Between(c.cycles, timestamp)) }
