package verbstest

import (
	"bytes"
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
		var b bytes.Buffer
		n.WritePcap(&b)
		if err := os.WriteFile(name, b.Bytes(), 0o644); err != nil {
			t.Log("capture file:", err)
			return
		}
		t.Log("capture file:", name)
	})
}
