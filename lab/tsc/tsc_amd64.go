// Package tsc reads the processor's time stamp counter.
package tsc

// Read returns the counter. It waits for earlier instructions, and later ones wait for it.
// On processors other than amd64 it returns the clock, in nanoseconds.
func Read() uint64
