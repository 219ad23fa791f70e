//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"golang.org/x/sys/unix"

	connslist "github.com/goverbs/verbs/cm/conns"
	"github.com/goverbs/verbs/internal/labtest"
)

// without are the commands that have no result to print as JSON: they change something, or what
// they print is for another program.
var without = strings.Split("link add,link del,link rename,link move,stat auto,stat unbind,cat,exporter,completion,man", ",")

// jsonCommand is a command with --json on a device in user space.
func jsonCommand(t *testing.T, host, line string) *exec.Cmd {
	t.Helper()
	fields := strings.Fields(line)
	cmd := command(t, append(fields, "--json")...)
	cmd.Env = append(cmd.Env, "VERBS_SOFT="+host)
	return cmd
}

// TestJSON runs every command with --json, where it succeeds and where it fails: its standard
// output is one value, or one a line, errors are on standard error, and the status says which it
// was.
func TestJSON(t *testing.T) {
	labtest.Require(t)
	host := softHost(t, 0)
	abi := 0 // with types of InfiniBand
	if _, err := os.Stat("/sys/kernel/btf/ib_uverbs"); err != nil {
		abi = 1
	}
	conns := httptest.NewServer(connslist.Handler())
	defer conns.Close()
	tested := slices.Clone(without)
	for _, test := range []struct {
		path, args string
		values     int
		status     int
	}{
		{"devices", "", 1, 0},
		{"info", "", 1, 0},
		{"info", "soft0", 1, 0},
		{"info", "nosuch", 0, 1},
		{"ports", "--gids", 1, 0},
		{"ports", "nosuch", 0, 1},
		{"counters", "", 1, 0},
		{"counters", "nosuch", 0, 1},
		{"counters", "--watch -n 2 --interval 1ms", 2, 0},
		{"res", "", 1, 0},
		{"res", "qp -d soft0", 1, 0},
		{"res", "-d nosuch", 0, 1},
		{"res", "no-kind", 0, 2},
		{"conns", conns.URL, 1, 0},
		{"conns", "http://127.0.0.1:1/", 0, 1},
		{"conns", "nosuch", 0, 2},
		{"stat show", "soft0", 1, 0},
		{"stat show", "nosuch", 0, 1},
		{"stat optional", "nosuch 1", 0, 1},
		{"stat bind", "nosuch 1 1", 0, 1},
		{"monitor", "--interval x", 0, 2},
		{"doctor", "", 1, 0},
		{"doctor", "nosuch", 1, 1}, // a problem
		{"check", "--duration 10ms", 1, 0},
		{"check", "-d nosuch", 0, 1},
		{"check", "-s", 0, 2}, // which prints no report
		{"abi", "", 1, abi},
		{"demo", "--soft", 1, 0},
		{"demo", "-a 192.0.2.1", 0, 1},
		{"ping", "-c", 0, 2},
		{"ping", "-c -a 127.0.0.1:nosuch", 0, 1},
		{"perf server", "-d nosuch", 0, 1},
	} {
		tested = append(tested, test.path)
		cmd := jsonCommand(t, host, test.path+" "+test.args)
		checkRun(t, cmd, test.values, test.status)
	}
	for _, leaf := range leaves(t) {
		path := strings.TrimPrefix(leaf.Path(), "verbs ")
		hasJSON := slices.ContainsFunc(leaf.Flags, func(f *kong.Flag) bool { return f.Name == "json" })
		if strings.HasPrefix(path, "perf ") && path != "perf server" {
			continue // see TestJSONServers
		}
		if !slices.Contains(tested, path) || hasJSON == slices.Contains(without, path) {
			t.Errorf("%s is not tested, or has an option --json that is not: %v", path, hasJSON)
		}
	}
}

// checkRun runs a command and checks its output and status.
func checkRun(t *testing.T, cmd *exec.Cmd, values, status int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	} else if got := cmd.ProcessState.ExitCode(); got != status || exit == nil != (status == 0) {
		t.Errorf("%q: exit status %d, not %d\n%s", cmd.Args[1:], got, status, &errs)
	}
	checkOutput(t, cmd, values, &out)
	if message := strings.HasPrefix(errs.String(), "verbs: ") || strings.Contains(errs.String(), "\nverbs: "); message != (status != 0) {
		t.Errorf("%q: exit status %d and %q", cmd.Args[1:], status, &errs)
	}
}

// checkOutput checks that there are so many values in the output, each on a line if there may be
// several.
func checkOutput(t *testing.T, cmd *exec.Cmd, values int, out *bytes.Buffer) {
	t.Helper()
	text, n := out.String(), 0
	for d := json.NewDecoder(out); ; n++ {
		var v any
		if err := d.Decode(&v); err == io.EOF {
			break
		} else if err != nil {
			t.Errorf("%q: %v in %q", cmd.Args[1:], err, text)
			return
		}
	}
	if n != values || values > 1 && strings.Count(text, "\n") != n {
		t.Errorf("%q: %d values, not %d: %.1000q", cmd.Args[1:], n, values, text)
	}
}

// TestJSONServers runs clients and servers, and what is interrupted.
func TestJSONServers(t *testing.T) {
	labtest.Require(t)
	here, there := softHost(t, 1), softHost(t, 2)
	serve := func(line, ready string) (server *exec.Cmd, out *bytes.Buffer) {
		t.Helper()
		server, out = jsonCommand(t, here, line), new(bytes.Buffer)
		server.Stdout = out
		messages := labtest.Must(server.StderrPipe())(t)
		labtest.Check(t, server.Start())
		seen, buf := "", make([]byte, 4096)
		for !strings.Contains(seen, ready) {
			n, err := messages.Read(buf)
			if seen += string(buf[:n]); err != nil {
				t.Fatalf("%s: %v: %q", line, err, seen)
			}
		}
		go io.Copy(io.Discard, messages)
		return server, out
	}
	end := func(server *exec.Cmd, out *bytes.Buffer, values int) {
		t.Helper()
		if err := server.Wait(); err != nil {
			t.Errorf("%q: %v", server.Args[1:], err)
		}
		checkOutput(t, server, values, out)
	}

	server, out := serve("ping -s -a "+here, "listening on "+here+":7174")
	checkRun(t, jsonCommand(t, there, "ping -c -C 2 -a "+here), 1, 0)
	end(server, out, 1)

	server, out = serve("perf server --once", "listening on [::]:18515\n")
	checkRun(t, jsonCommand(t, there, "perf ud bw -a -n 2 "+here), 1, 0)
	end(server, out, 12) // of 2 to 4096 bytes

	server, out = serve("perf server -d "+here, "listening on "+here+":18515")
	checkRun(t, jsonCommand(t, there, "perf read lat -n 2 --max-lat 1ns "+here), 1, 1) // a limit is not kept
	checkRun(t, jsonCommand(t, there, "perf read lat -n 0 "+here), 0, 2)
	labtest.Check(t, server.Process.Signal(unix.SIGTERM))
	end(server, out, 1)

	monitor := jsonCommand(t, here, "monitor")
	lines := labtest.Must(monitor.StdoutPipe())(t)
	labtest.Check(t, monitor.Start())
	var change struct{ Change, Device string }
	if err := json.NewDecoder(lines).Decode(&change); err != nil || change.Change != "device present" || change.Device != "soft0" {
		t.Errorf("%+v, %v", change, err)
	}
	labtest.Check(t, monitor.Process.Signal(os.Interrupt))
	if err := monitor.Wait(); err != nil {
		t.Error(err)
	}
}
