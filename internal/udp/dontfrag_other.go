//go:build (!linux && !darwin && !freebsd && !windows) || (linux && nordma)

package udp

// dontFragment does nothing: Linux sets the flag DF unless packets are larger than the path MTU,
// and other systems cannot.
func dontFragment(uintptr, bool) error { return nil }
