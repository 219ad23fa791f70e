//go:build linux

package main

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
)

type finding struct{ Level, Subject, Text, Remedy string }

// examine runs verbs doctor and returns its findings and exit status.
func examine(t *testing.T, cmd *exec.Cmd) (findings []finding, status int) {
	t.Helper()
	out, err := cmd.Output()
	if exit, ok := err.(*exec.ExitError); ok {
		status = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &findings); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return findings, status
}

// want checks that there is a finding whose text and remedy contain parts.
func want(t *testing.T, findings []finding, level, subject, text, remedy string) {
	t.Helper()
	if !slices.ContainsFunc(findings, func(f finding) bool {
		return f.Level == level && strings.HasPrefix(f.Subject, subject) && strings.Contains(f.Text, text) && strings.Contains(f.Remedy, remedy)
	}) {
		t.Errorf("there is no %s %q: %q, %q in\n%+v", level, subject, text, remedy, findings)
	}
}

// TestDoctor examines the lab, then without permissions, and a device without an address.
func TestDoctor(t *testing.T) {
	labtest.RequireKernel(t)
	findings, status := examine(t, command(t, "doctor", "--json"))
	if status != 0 || slices.ContainsFunc(findings, func(f finding) bool { return f.Level == "problem" }) {
		t.Errorf("exit status %d, %+v", status, findings)
	}
	for _, device := range labtest.Addressed() {
		want(t, findings, "ok", device+", "+labtest.AddrOf(device), "connected to itself", "")
		if addr6 := device + ", " + labtest.Addr6Of(device); len(labtest.AddrsOf(t, device)) == 2 {
			want(t, findings, "ok", addr6, "connected to itself", "")
		} else {
			want(t, findings, "note", addr6, "no connections with addresses of this family", "another")
		}
	}
	if out, err := command(t, "doctor", "rxe0").CombinedOutput(); err != nil || !strings.Contains(string(out), "ok        module rdma_ucm: loaded\n") || strings.Contains(string(out), "siw0") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := command(t, "doctor", "nosuch").CombinedOutput(); err == nil || !strings.Contains(string(out), "there is no such device") {
		t.Errorf("a device that does not exist: %v\n%s", err, out)
	}

	// As a user that may not open the nodes, with little memory.
	for _, node := range []string{"rdma_cm", "uverbs0"} {
		path := "/dev/infiniband/" + node
		labtest.Check(t, unix.Chmod(path, 0o600))
		t.Cleanup(func() { unix.Chmod(path, 0o666) })
	}
	cmd := command(t, "doctor", "--json", "rxe0")
	user := exec.Command("prlimit", "--memlock=32768:32768", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all")
	cmd.Path, cmd.Args, cmd.Err = user.Path, append(user.Args, cmd.Args...), user.Err
	findings, status = examine(t, cmd)
	if status != 1 {
		t.Errorf("exit status %d", status)
	}
	want(t, findings, "problem", "/dev/infiniband/rdma_cm", "no permission", "udev")
	want(t, findings, "problem", "/dev/infiniband/uverbs0", "no permission", "its mode is -rw-------")
	want(t, findings, "problem", "locked memory", "32 KiB", "LimitMEMLOCK=")

	t.Cleanup(func() {
		command(t, "link", "del", "cli0").Run()
		exec.Command("ip", "link", "del", "x0").Run()
	})
	if out, err := exec.Command("ip", "link", "add", "x0", "type", "dummy").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := command(t, "link", "add", "cli0", "rxe", "x0").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	findings, status = examine(t, command(t, "doctor", "--json", "cli0"))
	if status != 1 {
		t.Errorf("exit status %d", status)
	}
	want(t, findings, "problem", "cli0, port 1", "is DOWN", "ip link set x0 up")
	want(t, findings, "problem", "cli0", "no address", "ip address add")
}
