//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestLink makes a device, shows it by every command, renames and removes it, while verbs
// monitor prints that.
func TestLink(t *testing.T) {
	labtest.RequireLong(t)
	verbs := func(args ...string) string {
		t.Helper()
		out, err := command(t, args...).Output()
		if err != nil {
			stderr := ""
			if exit, ok := err.(*exec.ExitError); ok {
				stderr = string(exit.Stderr)
			}
			t.Fatalf("verbs %s: %v\n%s", strings.Join(args, " "), err, stderr)
		}
		return string(out)
	}
	monitor := command(t, "monitor", "--json", "--interval", "100ms")
	stdout := labtest.Must(monitor.StdoutPipe())(t)
	labtest.Check(t, monitor.Start())
	changes := json.NewDecoder(bufio.NewReader(stdout))
	expect := func(kind, device string) {
		t.Helper()
		for {
			var c struct{ Change, Device string }
			if err := changes.Decode(&c); err != nil {
				t.Fatalf("%s %s: %v", kind, device, err)
			}
			if c.Change == kind && c.Device == device {
				return
			}
		}
	}
	expect("device present", "siw0")
	t.Cleanup(func() { command(t, "link", "del", "cli0").Run() })
	verbs("link", "add", "cli0", "rxe", "d0")
	expect("device added", "cli0")

	text := verbs("ports", "cli0", "--gids")
	for _, part := range []string{"cli0/1  roce", "ACTIVE", "LINK_UP", "Ethernet", "d0\n", "::ffff:10.9.1.1", "RoCE v2"} {
		if !strings.Contains(text, part) {
			t.Errorf("verbs ports does not print %q:\n%s", part, text)
		}
	}
	var ports []struct {
		Device     string
		Interfaces []string
	}
	labtest.Check(t, json.Unmarshal([]byte(verbs("ports", "--json")), &ports))
	if len(ports) != 3 || ports[0].Device != "cli0" || len(ports[0].Interfaces) != 1 || ports[0].Interfaces[0] != "d0" {
		t.Errorf("verbs ports --json: %+v", ports)
	}
	if text := verbs("counters", "cli0", "--all"); !strings.Contains(text, "cli0/1  sent_pkts*") {
		t.Errorf("verbs counters:\n%s", text)
	}
	if text := verbs("counters", "cli0", "--watch", "--all", "-n", "1", "--interval", "50ms"); !strings.Contains(text, "PER SECOND") || !strings.Contains(text, "sent_pkts*") {
		t.Errorf("verbs counters --watch:\n%s", text)
	}
	if text := verbs("stat", "rxe0"); !strings.HasPrefix(text, "OF ") {
		t.Errorf("verbs stat:\n%s", text)
	}
	verbs("stat", "auto", "cli0", "1", "--type")
	if text := verbs("stat", "cli0", "--json"); !strings.Contains(text, `"qps_counted": "auto, by type"`) || !strings.Contains(text, "sent_pkts") {
		t.Errorf("verbs stat --json:\n%s", text)
	}
	verbs("stat", "optional", "cli0", "1")
	if text := verbs("res"); !strings.Contains(text, "cli0") || !strings.HasPrefix(text, "DEVICE") {
		t.Errorf("verbs res:\n%s", text)
	}
	ctx := labtest.OpenDevice(t, "cli0")
	pd := labtest.Must(ctx.AllocPD())(t)
	for _, kind := range []string{"pd", "ctx"} {
		if text := verbs("res", kind, "-d", "cli0"); !strings.Contains(text, "verbs.test") {
			t.Errorf("verbs res %s:\n%s", kind, text)
		}
		var list []map[string]any
		labtest.Check(t, json.Unmarshal([]byte(verbs("res", kind, "--json", "--pid", strconv.Itoa(os.Getpid()))), &list))
		if len(list) != 1 || list[0]["device"] != "cli0" || list[0]["comm"] != "verbs.test" || list[0][kind] == nil {
			t.Errorf("verbs res %s --json: %v", kind, list)
		}
	}
	for _, kind := range []string{"qp", "cq", "mr", "srq", "cm_id"} {
		if lines := strings.Count(verbs("res", kind, "--pid", "999999"), "\n"); lines != 1 {
			t.Errorf("verbs res %s prints %d lines", kind, lines)
		}
	}
	for pid, n := range map[int]int{os.Getpid(): 1, 999999: 0} {
		var counts []struct{ PD, CTX int }
		labtest.Check(t, json.Unmarshal([]byte(verbs("res", "-d", "cli0", "--json", "--pid", strconv.Itoa(pid))), &counts))
		if len(counts) != 1 || counts[0].PD != n || counts[0].CTX != n {
			t.Errorf("verbs res --pid %d: %+v", pid, counts)
		}
	}
	labtest.Check(t, pd.Close(), ctx.Close()) // the kernel waits for that when it removes the device

	verbs("link", "rename", "cli0", "cli1")
	expect("device renamed", "cli1")
	verbs("link", "del", "cli1")
	expect("device removed", "cli1")
	labtest.Check(t, monitor.Process.Signal(unix.SIGINT))
	if err := monitor.Wait(); err != nil {
		t.Errorf("verbs monitor: %v", err)
	}

	if out, err := command(t, "link", "del", "cli1").CombinedOutput(); err == nil || !strings.Contains(string(out), "no such RDMA device") {
		t.Errorf("a device that does not exist: %v\n%s", err, out)
	}
	if out, err := command(t, "link", "add", "cli1", "rxe", "nosuch").CombinedOutput(); err == nil || !strings.Contains(string(out), "no such network interface: nosuch") {
		t.Errorf("an interface that does not exist: %v\n%s", err, out)
	}
}
