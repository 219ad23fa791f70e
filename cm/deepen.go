package cm

// depth is about what the way into the kernel takes of a stack.
const depth = 3 << 10

// deepen has the goroutine's stack grow while there is little on it that has to be
// copied: goroutines that make one connection are new, and with a dozen calls on
// the stack that would be a twentieth of the work. Only the size of its frame
// matters.
//
//go:noinline
func deepen(never bool) {
	if never {
		var room [depth]byte
		touch(&room)
	}
}

//go:noinline
func touch(*[depth]byte) {}
