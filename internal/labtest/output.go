//go:build linux

package labtest

import (
	"io"
	"os"
	"testing"
)

// Output returns what f writes to the standard output.
func Output(t testing.TB, f func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	stdout := os.Stdout
	os.Stdout = w
	all := make(chan string)
	go func() {
		b, _ := io.ReadAll(r)
		all <- string(b)
	}()
	f()
	os.Stdout = stdout
	w.Close()
	return <-all
}
