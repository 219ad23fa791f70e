// Package tsc reads the processor's time stamp counter.
package tsc

// Read returns the counter. It waits for instructions before it, and holds back those
// after it. Elsewhere than on amd64 the counter is the clock, in nanoseconds.
func Read() uint64
