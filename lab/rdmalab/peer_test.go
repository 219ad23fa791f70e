//go:build linux

package main

import (
	"strings"
	"testing"

	"github.com/goverbs/verbs/lab/internal/image"
	"github.com/goverbs/verbs/lab/internal/job"
)

// TestPair runs a peer whose kernel goes down while the first machine waits for it, and
// connects the two by wires.
func TestPair(t *testing.T) {
	const script = `
		if [ $VERBS_HOST = 2 ]; then
			if [ -e once ]; then echo again; >twice; sleep 1000; fi
			>once; sync; echo b >/proc/sysrq-trigger; sleep 1000
		fi
		refused() { (echo >/dev/tcp/$1/9) 2>&1 | grep -q refused; }
		until [ -e twice ] && refused 10.9.9.2; do sleep 0.2; done
		refused 10.9.0.2 && refused fd00:9::2 && refused 10.9.1.2 && refused fd00:9:1::2 && uname -r && echo $VERBS_PEER
		exit 3`
	cmd, stdout, stderr := lab(t, "bash", "-c", script)
	cmd.Dir = t.TempDir()
	cmd.Env = append(cmd.Env, "LAB_PEER="+image.Kernels[0].Name, "LAB_WRITE="+cmd.Dir)
	if code := status(t, cmd.Run()); code != 3 {
		t.Errorf("exit status %d, want 3", code)
	}
	first, peer, _ := strings.Cut(stdout.String(), "\n")
	if first == "" || !strings.HasPrefix(peer, image.Kernels[0].Name+".") {
		t.Errorf("stdout %q", stdout)
	}
	if want := "peer: went down, and is booted again\npeer: again\n"; !strings.HasSuffix(stderr.String(), want) {
		t.Errorf("stderr %q, want %q", stderr, want)
	}
}

// TestPeerFails checks that the run ends when the peer fails.
func TestPeerFails(t *testing.T) {
	for _, test := range []struct{ name, script, stderr string }{
		{"exit", "exit 4", "peer: its program ended with status 4"},
		{"warning", "echo '<4>WARNING: of a test' >/dev/kmsg; sleep 1; echo b >/proc/sysrq-trigger; sleep 1000", "WARNING: of a test"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd, _, stderr := lab(t, "sh", "-c", "[ $VERBS_HOST = 1 ] && sleep 1000; "+test.script)
			cmd.Env = append(cmd.Env, "LAB_PEER="+image.Kernels[0].Name)
			if code := status(t, cmd.Run()); code != job.ExitLab {
				t.Errorf("exit status %d, want %d", code, job.ExitLab)
			}
			if !strings.Contains(stderr.String(), test.stderr) || strings.Contains(stderr.String(), "booted again") {
				t.Errorf("stderr %q, want %q", stderr, test.stderr)
			}
		})
	}
}
