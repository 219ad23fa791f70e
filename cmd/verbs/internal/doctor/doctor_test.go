//go:build linux

package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmadev"
)

// text returns the findings, a line each.
func text(p *patient) string {
	var b strings.Builder
	for _, f := range p.findings {
		b.WriteString(string(f.Level) + " " + f.Subject + ": " + f.Text + " → " + f.Remedy + "\n")
	}
	return b.String()
}

// TestNoSysfs examines a system where sysfs is not mounted: nothing is known of modules and
// devices.
func TestNoSysfs(t *testing.T) {
	p := newPatient()
	p.sys = t.TempDir()
	p.examine(t.Context(), "")
	got := text(p)
	if !strings.Contains(got, "problem "+p.sys+": is not mounted: programs find no devices") || strings.Contains(got, "modprobe") || strings.Contains(got, "there are none") {
		t.Error(got)
	}
}

// TestNoDevices tells why there are no devices: nothing has made one, another network namespace has
// them, or something hides them.
func TestNoDevices(t *testing.T) {
	for _, test := range []struct {
		owns         bool
		listed       []string
		text, remedy string
	}{
		{false, nil, "there are none", "VERBS_SOFT"},
		{true, nil, "does not see those of others", "netns shared"},
		{false, []string{"mlx5_0", "rxe0"}, "the kernel has mlx5_0, rxe0, and /none/class/infiniband does not show them", "findmnt"},
		{true, []string{"mlx5_0"}, "the kernel has mlx5_0", "findmnt"},
	} {
		p := &patient{sys: "/none", owns: test.owns}
		p.noDevices(test.listed)
		if f := p.findings[0]; f.Level != Problem || !strings.Contains(f.Text, test.text) || !strings.Contains(f.Remedy, test.remedy) {
			t.Errorf("%+v: %+v", test, f)
		}
	}
}

// TestModule looks for a module that is loaded, that can be loaded, that the kernel was built
// without, and of which nothing is known.
func TestModule(t *testing.T) {
	sys, modules := t.TempDir(), t.TempDir()
	for path, list := range map[string]string{"has/modules.dep": "kernel/drivers/ib_uverbs.ko.xz: a\n", "has/modules.builtin": "", "has-not/modules.dep": "kernel/fs/ext4.ko:\n", "has-not/modules.builtin": "",
		"built-in/modules.dep": "", "built-in/modules.builtin": "kernel/drivers/ib_uverbs.ko\n"} {
		path = filepath.Join(modules, path)
		labtest.Check(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(list), 0o644))
	}
	labtest.Check(t, os.MkdirAll(filepath.Join(sys, "class/infiniband_verbs"), 0o755), os.WriteFile(filepath.Join(sys, "file"), nil, 0o644))
	for _, test := range []struct{ release, path, want, remedy string }{
		{"has", "class/infiniband_verbs", "ok", ""},
		{"has", "class/none", "problem", "modprobe ib_uverbs"},
		{"built-in", "class/none", "problem", "modprobe ib_uverbs"},
		{"has-not", "class/none", "problem", "built without ib_uverbs"},
		{"no-such", "class/none", "problem", "on the host"},
		{"has", "file/none", "note", ""}, // ENOTDIR, as any error but ENOENT
	} {
		p := &patient{sys: sys, modules: modules, release: test.release}
		p.module("ib_uverbs", test.path, "without")
		if f := p.findings[0]; string(f.Level) != test.want || !strings.Contains(f.Remedy, test.remedy) {
			t.Errorf("%s, %s: %+v", test.release, test.path, f)
		}
		if remedy := p.makeDevice(); strings.Contains(remedy, "VERBS_SOFT=1") == false || strings.Contains(remedy, "verbs link add") {
			t.Errorf("%s: %s", test.release, remedy)
		}
	}
}

// TestInterrupted interrupts an examination: what was found is printed, and nothing that the
// interruption caused is a finding.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []Cmd{{}, {JSON: true}, {Device: "nosuch"}} {
		var b bytes.Buffer
		if err := c.run(ctx, &b); !errors.Is(err, errInterrupted) {
			t.Errorf("%+v: %v", c, err)
		}
		if !strings.Contains(b.String(), "kernel") || strings.Contains(b.String(), "cancel") || strings.Contains(b.String(), "no such device") {
			t.Errorf("%+v: %s", c, b.String())
		}
		var findings []Finding
		if c.JSON {
			labtest.Check(t, json.Unmarshal(b.Bytes(), &findings))
		}
	}
	if f := connect(ctx, "rxe0", netip.MustParseAddr("127.0.0.1")); f != (Finding{}) {
		t.Errorf("%+v", f)
	}
}

// TestConnections connects each device to itself.
func TestConnections(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		d := labtest.Must(rdmadev.Find(device))(t)
		p := newPatient()
		p.device(t.Context(), d)
		for _, addr := range []string{labtest.AddrOf(device)} {
			if !slices.ContainsFunc(p.findings, func(f Finding) bool {
				return f.Level == OK && f.Subject == device+", "+addr && strings.Contains(f.Text, "connected to itself")
			}) {
				t.Error(text(p))
			}
		}
	})
}

// TestGiveAddress names the interface to give an address, unless it is in another namespace.
func TestGiveAddress(t *testing.T) {
	for name, want := range map[string]string{"lo": "ip link set lo up", "nosuch0": "not in this network namespace"} {
		if got := giveAddress(rdmadev.Device{Ports: []rdmadev.Port{{Interfaces: []string{name}}}}); !strings.Contains(got, want) {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := giveAddress(rdmadev.Device{}); !strings.Contains(got, "namespace") {
		t.Error(got)
	}
}
