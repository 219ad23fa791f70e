package uverbs

import (
	"cmp"
	"fmt"
	"strings"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/provider"
)

// limit is a size that the caller asked for, and the device's maximum: 0 if that is unknown, and -1
// if there can be none.
type limit struct {
	name        string
	asked, most int
}

// failSize is fail for an operation that makes or changes an object. The kernel says EINVAL or
// ENOMEM for many reasons; failSize names the sizes that exceed the device's limits. If none does,
// the device may have run out of objects, for which rxe answers EINVAL (__rxe_add_to_pool): most is
// their maximum, and mostName the field of [verbs.DeviceAttr] that has it, or "" if no object is
// made.
func (o *object) failSize(op string, err error, mostName string, most int, limits ...limit) error {
	if err != syscall.EINVAL && err != syscall.ENOMEM { // a wrapped error has been explained already
		return o.fail(op, err)
	}
	if exceeded := nameLimits(limits, err); exceeded != err {
		return o.fail(op, exceeded)
	}
	e := o.fail(op, err)
	if mostName != "" {
		hint := "all sizes are within the device's limits, but it may have run out of objects: %s is %d"
		if err == syscall.ENOMEM {
			hint = "the kernel lacks memory, or the device has no more objects: %s is %d"
		}
		e.Hint = fmt.Sprintf(hint, mostName, most)
	}
	return e
}

// nameLimits adds the exceeded limits to err.
func nameLimits(limits []limit, err error) error {
	var over []string
	for _, l := range limits {
		if most := max(l.most, 0); l.most != 0 && l.asked > most {
			over = append(over, fmt.Sprintf("%s %d of at most %d", l.name, l.asked, most))
		}
	}
	if over == nil {
		return err
	}
	return fmt.Errorf("%s: %w", strings.Join(over, ", "), err)
}

// maxInline returns the most inline bytes that the driver's send queues take, -1 if they take none, or
// 0 if it is unknown.
func maxInline(c provider.Context) int {
	l, ok := c.(provider.InlineLimiter)
	if !ok {
		return 0
	}
	return cmp.Or(l.MaxInline(), -1)
}

// maxSGE returns the most SGEs of sends and of receives, or 0 if they are unknown.
func (c *contextCore) maxSGE() (send, recv int) {
	if l, ok := c.driverContext.(provider.SGELimiter); ok {
		return l.MaxSGE()
	}
	return c.dev.Attr.MaxSGE, c.dev.Attr.MaxSGE
}

// limitCap sets the fields of asked that are zero to those of defaults, or to what the device takes if
// that is less: only what the program asked for may fail.
func (c *contextCore) limitCap(asked, defaults verbs.QPCap) verbs.QPCap {
	set := func(size *int, zero, most int) {
		if *size == 0 {
			if *size = zero; most != 0 {
				*size = min(zero, most)
			}
		}
	}
	sends, recvs := c.maxSGE()
	set(&asked.MaxSendWR, defaults.MaxSendWR, c.dev.Attr.MaxQPWR)
	set(&asked.MaxRecvWR, defaults.MaxRecvWR, c.dev.Attr.MaxQPWR)
	set(&asked.MaxSendSGE, defaults.MaxSendSGE, sends)
	set(&asked.MaxRecvSGE, defaults.MaxRecvSGE, recvs)
	set(&asked.MaxInline, defaults.MaxInline, maxInline(c.driverContext))
	return asked
}
