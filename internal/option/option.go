// Package option checks the sizes among the options of the layers above the connection manager.
package option

import (
	"fmt"

	"github.com/goverbs/verbs"
)

// Option is an option that has a default and a range.
type Option struct {
	name          string
	v             *int
	def, min, max int
}

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
