// Package compat compares what two versions of headers give, as when a mirror has the pinned one no more.
package compat

import (
	"errors"
	"fmt"
)

// Check reports items of the old version that are missing or different in the new one. New items are no
// error.
func Check(old, new map[string]string) error {
	var errs []error
	for item, value := range old {
		if v, ok := new[item]; !ok {
			errs = append(errs, fmt.Errorf("%s: removed", item))
		} else if v != value {
			errs = append(errs, fmt.Errorf("%s: was %s, is %s", item, value, v))
		}
	}
	return errors.Join(errs...)
}
