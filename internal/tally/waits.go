package tally

import (
	"slices"
	"time"
)

// Waits are the times at which the calls that wait now began, the oldest first. Its users lock it.
type Waits []time.Time

// Begin adds a call that begins to wait, for End.
func (w *Waits) Begin() time.Time {
	now := time.Now()
	*w = append(*w, now)
	return now
}

// End removes a call.
func (w *Waits) End(began time.Time) {
	i := slices.Index(*w, began)
	*w = slices.Delete(*w, i, i+1)
}
