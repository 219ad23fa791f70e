//go:build linux

package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestPruneStates has builds of rdmalab that share a cache: the states that were used last stay.
func TestPruneStates(t *testing.T) {
	dir := t.TempDir()
	prefix := filepath.Join(dir, "state-a-")
	write := func(file string, age time.Duration) {
		t.Helper()
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
	}
	write(prefix+unfinishedState, time.Hour)
	write(filepath.Join(dir, "state-b-0"), time.Hour)
	for i := range keptStates + 2 {
		write(fmt.Sprint(prefix, i), time.Duration(10-i)*time.Minute)
	}
	if !useState(prefix+"0") || useState(prefix+"absent") {
		t.Error("which states exist is wrong")
	}
	if err := pruneStates(prefix); err != nil {
		t.Error(err)
	}
	var want []string
	for _, end := range []string{"a-0", "a-3", "a-4", "a-5", "a-" + unfinishedState, "b-0"} {
		want = append(want, filepath.Join(dir, "state-"+end))
	}
	if got, _ := filepath.Glob(filepath.Join(dir, "*")); !slices.Equal(got, want) {
		t.Errorf("%q stay, want %q", got, want)
	}
}
