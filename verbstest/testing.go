package verbstest

import (
	"os"
	"path/filepath"
	"testing"
)

// TraceOnFailure logs the network's trace at the end of a test if it has failed, and writes it to
// network.pcapng in the test's artifact directory, which go test -artifacts keeps.
func TraceOnFailure(t testing.TB, n *Network) {
	t.Helper()
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		t.Logf("packets:\n%s", n.Trace())
		name := filepath.Join(t.ArtifactDir(), "network.pcapng")
		f, err := os.Create(name)
		if err != nil {
			t.Log("capture file:", err)
			return
		}
		defer f.Close()
		if err := n.WritePcap(f); err != nil {
			t.Log("capture file:", err)
			return
		}
		t.Log("capture file:", name)
	})
}
