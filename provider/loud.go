//go:build !verbs_mute

package provider

// muted is always false; see mute.go.
func muted(*command) bool { return false }
