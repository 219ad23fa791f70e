//go:build linux

package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
)

// TestShell types commands into a shell on a terminal.
func TestShell(t *testing.T) {
	cmd, _, _ := lab(t, "--mem", "512", "shell", "sh")
	cmd.Stdout, cmd.Stderr = nil, nil
	master, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 33, Cols: 77})
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	master.SetDeadline(time.Now().Add(2 * time.Minute))
	// The shell reads the commands when it has started; the answers differ from their echo.
	if _, err := io.WriteString(master, "until stty size | grep -v '^0 0'; do :; done\r test -t 2 && echo term''inal; ls /sys/class/infiniband; exit 5\r"); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	io.Copy(&out, master) // until the terminal is closed
	if code := status(t, cmd.Wait()); code != 5 {
		t.Errorf("exit status %d", code)
	}
	for _, want := range []string{"33 77", "terminal", "rxe0"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %q", want, &out)
		}
	}
}

func TestShellNeedsTerminal(t *testing.T) {
	cmd, _, stderr := lab(t, "shell")
	if code := status(t, cmd.Run()); code != exitLab || !strings.Contains(stderr.String(), "shell: stdin is not a terminal") {
		t.Errorf("exit status %d: %s", code, stderr)
	}
}
