package cm

import "time"

// idle is where goroutines that have run something in the background wait for more.
var idle = make(chan func())

// background runs f, by a goroutine that has done so before if one is idle: its
// stack has grown by then to what a way into the kernel takes, which in a new one
// is half the work.
func background(f func()) {
	select {
	case idle <- f:
	default:
		go work(f)
	}
}

// work runs f and what comes after it, until nothing has for a while.
func work(f func()) {
	quiet := time.NewTimer(keepFor)
	defer quiet.Stop()
	for f != nil {
		f()
		f = next(quiet)
	}
}

// next is nil if nothing came from one tick to the next.
func next(quiet *time.Timer) func() {
	for range 2 {
		select {
		case f := <-idle:
			return f
		case <-quiet.C:
			quiet.Reset(keepFor)
		}
	}
	return nil
}
