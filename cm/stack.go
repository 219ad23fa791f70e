package cm

import "runtime"

// growStack makes room for a set-up on the stack of the goroutine, which has just begun or may have.
// The runtime doubles a stack when it is full: from 2 KiB it would do so twice, each time with more
// frames to copy, which takes a twentieth of the time of a set-up.
//
//go:noinline
func growStack() {
	var frame [6 << 10]byte
	runtime.KeepAlive(&frame)
}
