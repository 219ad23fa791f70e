package sys

import "time"

var start = time.Now()

// Monotonic is the time since the program began: half the work of [time.Now], which
// asks for the time of day too.
func Monotonic() time.Duration { return time.Since(start) }
