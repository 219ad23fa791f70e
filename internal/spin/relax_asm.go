//go:build amd64 || arm64

package spin

// relax tells the processor that this is a loop that waits: it leaves more to the
// other thread of its core, and a hypervisor may run another of the machine's
// processors instead.
func relax()
