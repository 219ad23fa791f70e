package rdmatest

import "time"

// SetPatience sets how long CheckLeaks waits until restore is called.
func SetPatience(d time.Duration) (restore func()) {
	old := patience
	patience = d
	return func() { patience = old }
}
