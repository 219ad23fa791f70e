//go:build !nordma

package udp

const hasTOS = true

// hasOffload reports whether Linux segments packets.
func hasOffload(n Network) bool { return !n.NoOffload }
