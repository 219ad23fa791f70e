package labtest

import (
	"os/exec"
	"testing"
)

// Shell runs commands of the shell. It ends the test if one of them fails.
func Shell(t testing.TB, script string) {
	t.Helper()
	if out, err := exec.Command("sh", "-exc", script).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
