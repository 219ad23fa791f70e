//go:build race

package provider

import (
	"bytes"
	"os"
	"os/exec"
	"testing"
)

// TestSingleThreadedMisuse uses a gate without a lock from two goroutines, first one
// after the other and then at the same time, in processes of their own: the race detector
// reports only the second.
func TestSingleThreadedMisuse(t *testing.T) {
	const env = "VERBS_TEST_MISUSE"
	if how := os.Getenv(env); how != "" {
		g := Gate{SingleThreaded: true}
		g.Lock()
		g.Unlock()
		done := make(chan bool)
		go func() {
			g.Lock()
			g.Unlock()
			done <- true
		}()
		if how == "overlap" {
			g.Lock()
			g.Unlock()
		}
		<-done
		g.Stop(true)
		return
	}
	for how, want := range map[string]bool{"handed over": false, "overlap": true} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSingleThreadedMisuse$")
		cmd.Env = append(os.Environ(), env+"="+how)
		out, err := cmd.CombinedOutput()
		if got := bytes.Contains(out, []byte("DATA RACE")); got != want || (err != nil) != want {
			t.Errorf("%s: %v, a race reported: %v\n%s", how, err, got, out)
		}
	}
}
