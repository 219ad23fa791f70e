package uverbs

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/goverbs/verbs/provider"
)

// limit is a size that the caller has asked for, and the most that the device has, or 0 if
// that is not known.
type limit struct {
	name        string
	asked, most int
}

// failSize is fail for an operation that makes or changes an object. The kernel says EINVAL, or
// ENOMEM, whatever the reason; failSize names the sizes that exceed the device's limits. If none
// does, the device may have no more objects: most is the number that it has in all, and mostName
// that field of [verbs.DeviceAttr], or empty if no object is made. (rxe answers EINVAL then:
// __rxe_add_to_pool.)
func (o *object) failSize(op string, err error, mostName string, most int, limits ...limit) error {
	if err != syscall.EINVAL && err != syscall.ENOMEM { // or something has explained it, such as the driver, whose limits are exact
		return o.fail(op, err)
	}
	if exceeded := nameLimits(limits, err); exceeded != err {
		return o.fail(op, exceeded)
	}
	e := o.fail(op, err)
	if err == syscall.EINVAL && mostName != "" {
		e.Hint = fmt.Sprintf("all sizes are within the device's limits, but it may have run out of objects: %s is %d", mostName, most)
	}
	if err == syscall.ENOMEM && mostName != "" {
		e.Hint = fmt.Sprintf("the kernel lacks memory, or the device has no more objects: %s is %d", mostName, most)
	}
	return e
}

// nameLimits adds the limits that are exceeded to err.
func nameLimits(limits []limit, err error) error {
	var over []string
	for _, l := range limits {
		if l.most > 0 && l.asked > l.most {
			over = append(over, fmt.Sprintf("%s %d of at most %d", l.name, l.asked, l.most))
		}
	}
	if over == nil {
		return err
	}
	return fmt.Errorf("%s: %w", strings.Join(over, ", "), err)
}

// maxInline returns how many inline bytes the driver's send queues take at most, or 0 if that is
// not known.
func maxInline(c provider.Context) int {
	if l, ok := c.(provider.InlineLimiter); ok {
		return l.MaxInline()
	}
	return 0
}
