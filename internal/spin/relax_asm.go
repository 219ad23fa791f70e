//go:build amd64 || arm64

package spin

// relax is the processor's hint for a busy-waiting loop: the other thread of the core gets more of
// it, and a hypervisor may run another of the machine's processors instead.
func relax()
