//go:build linux

package labtest

import (
	"bufio"
	"os"
	"testing"
)

// Lines returns the lines that are written to the standard output until end is
// called.
func Lines(t testing.TB) (lines <-chan string, end func()) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ch := make(chan string, 1000)
	go func() {
		defer close(ch)
		defer r.Close()
		for s := bufio.NewScanner(r); s.Scan(); {
			ch <- s.Text()
		}
	}()
	stdout := os.Stdout
	os.Stdout = w
	return ch, func() {
		os.Stdout = stdout
		w.Close()
	}
}

// Output returns what f writes to the standard output.
func Output(t testing.TB, f func()) string {
	t.Helper()
	lines, end := Lines(t)
	f()
	end()
	var all string
	for line := range lines {
		all += line + "\n"
	}
	return all
}
