//go:build linux

package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestFullDisk prints where nothing can be written, which fails.
func TestFullDisk(t *testing.T) {
	labtest.Require(t)
	full := labtest.Made(os.OpenFile("/dev/full", os.O_WRONLY, 0))(t)
	host := softHost(t, 7)
	for _, line := range []string{"devices", "info", "doctor", "check --duration 0", "res", "ports"} {
		cmd := command(t, strings.Fields(line)...)
		cmd.Env = append(cmd.Env, "VERBS_SOFT="+host)
		var errs strings.Builder
		cmd.Stdout, cmd.Stderr = full, &errs
		if err := cmd.Run(); err == nil || !strings.Contains(errs.String(), "no space left") {
			t.Errorf("verbs %s: %v, %s", line, err, &errs)
		}
	}
}

// TestNarrow runs commands on terminals of few columns, which their output fits, with all names in
// one piece, and without a terminal, where it does not depend on COLUMNS.
func TestNarrow(t *testing.T) {
	labtest.Require(t)
	host := softHost(t, 4)
	for _, line := range []string{"devices", "info soft0", "ports --gids", "counters --all soft0", "res", "doctor", "abi --all"} {
		run := func(env string) *exec.Cmd {
			cmd := command(t, strings.Fields(line)...)
			cmd.Env = append(cmd.Env, "VERBS_SOFT="+host, env)
			return cmd
		}
		master, terminal := labtest.Terminal(t, 64)
		cmd := run("COLUMNS=")
		cmd.Stdout = terminal
		labtest.Check(t, cmd.Start())
		terminal.Close()
		var shown bytes.Buffer
		io.Copy(&shown, master) // ends with EIO when the command has
		cmd.Wait()              // abi may fail
		text := strings.ReplaceAll(shown.String(), "\r", "")
		if !cli.Fits(text, 64) || text == "" {
			t.Errorf("verbs %s is wider than 64 columns:\n%s", line, text)
		}
		if line == "devices" && strings.Contains(text, "------") {
			t.Errorf("verbs %s has the line below the header as a device:\n%s", line, text)
		}
		plain, _ := run("COLUMNS=64").Output()
		if (line == "devices" || line == "info soft0") && cli.Fits(string(plain), 64) {
			t.Errorf("verbs %s without a terminal depends on COLUMNS:\n%s", line, plain)
		}
		for _, name := range strings.Fields(string(plain)) {
			if parts := strings.Split(name, ","); len(parts[0]) > 30 && !strings.Contains(text, parts[0]) {
				t.Errorf("verbs %s breaks %s:\n%s", line, name, text)
			}
		}
	}
}
