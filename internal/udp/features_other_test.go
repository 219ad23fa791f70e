//go:build !linux || nordma

package udp

const hasTOS = false

func hasOffload(Network) bool { return false }
