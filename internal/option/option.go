// Package option checks the options that the layers above the connection manager have in common.
package option

import (
	"cmp"
	"fmt"
	"time"

	"github.com/goverbs/verbs"
)

// Option is an option that has a default and a range.
type Option struct {
	name          string
	v             *int
	def, min, max int
}

// KeepAlive returns the interval that an option of the layers means, 0 for none.
func KeepAlive(d time.Duration) time.Duration { return max(cmp.Or(d, DefaultKeepAlive), 0) }

// DefaultKeepAlive is the interval of the test of an idle connection.
const DefaultKeepAlive = 15 * time.Second

// Size returns the option whose value is v.
func Size(name string, v *int, def, min, max int) Option { return Option{name, v, def, min, max} }

// Set replaces zeros by the defaults, and negative values by none where that is possible, and
// refuses values out of range.
func Set(options ...Option) error {
	for _, o := range options {
		switch {
		case *o.v == 0:
			*o.v = o.def
		case *o.v < 0 && o.min == 0:
			*o.v = 0
		}
		if *o.v < o.min || *o.v > o.max {
			return fmt.Errorf("option %s is %d: %w: %d to %d", o.name, *o.v, verbs.ErrRange, o.min, o.max)
		}
	}
	return nil
}
