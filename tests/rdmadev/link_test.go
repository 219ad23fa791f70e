package rdmadev

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmadev"
)

// TestLink adds, renames and deletes a device, takes its port down and up, and watches that: the
// kernel reports each change.
func TestLink(t *testing.T) {
	labtest.RequireKernel(t)
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("no change"))
	defer cancel()
	changes := make(chan rdmadev.Change)
	ended := make(chan error, 1)
	go func() {
		for c, err := range (rdmadev.Source{}).Watch(ctx, rdmadev.WatchOptions{Interval: time.Hour}) {
			if err != nil {
				ended <- err
				return
			}
			changes <- c
		}
	}()
	expect := func(kind rdmadev.ChangeKind, name string) {
		t.Helper()
		for {
			select {
			case c := <-changes:
				d := c.New
				if kind == rdmadev.DeviceRemoved {
					d = c.Old
				}
				if c.Kind == kind && d.Name == name {
					return
				}
			case err := <-ended:
				t.Fatalf("%s %s: %v", kind, name, err)
			}
		}
	}
	expect(rdmadev.DevicePresent, "siw0")

	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", args, err, out)
		}
	}
	ip("link", "add", "f0", "up", "type", "dummy")
	t.Cleanup(func() { ip("link", "del", "f0") })
	labtest.Check(t, rdmadev.AddLink("rxe7", "rxe", "f0"))
	d := labtest.Must(rdmadev.Find("rxe7"))(t)
	if d.Protocol != rdmadev.RoCE || d.Driver != "rxe" || len(d.Ports) != 1 || len(d.Ports[0].Interfaces) == 0 || d.Ports[0].Interfaces[0] != "f0" {
		t.Errorf("added %+v", d)
	}
	t.Cleanup(func() { d.Delete() })
	expect(rdmadev.DeviceAdded, "rxe7")
	for _, state := range []string{"down", "up"} {
		ip("link", "set", "f0", state)
		expect(rdmadev.PortChanged, "rxe7")
	}
	labtest.Check(t, d.Rename("renamed"))
	if again := labtest.Must(rdmadev.Find("renamed"))(t); again.Index != d.Index {
		t.Errorf("its index was %d and is %d", d.Index, again.Index)
	}
	expect(rdmadev.DeviceRenamed, "renamed")
	if err := d.Rename("siw0"); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("a name that is taken: %v", err)
	}
	for _, on := range []bool{true, false} {
		labtest.Check(t, d.SetAdaptiveModeration(on))
		if again := labtest.Must(rdmadev.Find("renamed"))(t); again.AdaptiveModeration != on {
			t.Errorf("adaptive moderation is %v", !on)
		}
	}
	for what, err := range map[string]error{"add": d.AddSubdevice("smi0"), "delete": d.DeleteSubdevice()} {
		if err == nil {
			t.Errorf("rxe has subdevices: %s", what)
		}
	}
	labtest.Check(t, d.Delete())
	expect(rdmadev.DeviceRemoved, "renamed")
	if err := d.Delete(); err == nil {
		t.Error("deleted twice")
	}

	for _, c := range []struct {
		typ, netInterface string
		want              error
	}{{"rxe", "nosuch", syscall.ENODEV}, {"nosuch", "d0", syscall.EINVAL}} {
		if err := rdmadev.AddLink("rxe7", c.typ, c.netInterface); !errors.Is(err, c.want) {
			t.Errorf("%s on %s: %v", c.typ, c.netInterface, err)
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Watch ended with %v", err)
	}
}

// TestSystem reads and changes settings of the system.
func TestSystem(t *testing.T) {
	labtest.RequireKernel(t)
	before := labtest.Must(rdmadev.ReadSystem())(t)
	netns := map[bool]string{false: "exclusive", true: "shared"}
	onOff := map[bool]string{false: "off", true: "on"}
	out := string(labtest.Must(exec.Command("rdma", "system", "show").Output())(t))
	if want := fmt.Sprintf("netns %s copy-on-fork %s\n", netns[before.SharedDevices], onOff[before.CopyOnFork]); out != want {
		t.Errorf("%+v, rdma prints %s", before, out)
	}
	for _, shared := range []bool{!before.SharedDevices, before.SharedDevices} {
		labtest.Check(t, rdmadev.SetSharedDevices(shared))
		if s := labtest.Must(rdmadev.ReadSystem())(t); s.SharedDevices != shared {
			t.Errorf("devices are shared: %v", !shared)
		}
	}
}

// TestCounters compares the counters of sysfs with those of netlink. Between the two
// readings nothing may be sent, so it tries again if they differ.
func TestCounters(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		d := labtest.Must(rdmadev.Find(device))(t)
		labtest.Until(t, "sysfs and netlink to agree", func() bool {
			sys := labtest.Must(d.Ports[0].Counters())(t)
			// On newer kernels (7.3) rxe also has those of the specification, which netlink omits.
			sys = slices.DeleteFunc(sys, func(c rdmadev.Counter) bool { return !c.Hardware })
			nl, err := d.HardwareCounters(1)
			if device == labtest.SIW || labtest.OlderERDMA(device) {
				if len(sys) != 0 || !errors.Is(err, syscall.EINVAL) {
					t.Errorf("%s has counters: %v, %v", device, sys, err)
				}
				return true
			}
			labtest.Check(t, err)
			values := map[string]uint64{}
			for _, c := range nl {
				values[c.Name] = c.Value
			}
			same := len(sys) == len(nl) && len(nl) > 0
			for _, c := range sys {
				if v, ok := values[c.Name]; !ok || v != c.Value {
					same = false
				}
			}
			if !same {
				t.Logf("sysfs has %+v, netlink %+v", sys, nl)
			}
			return same
		})
	})
}

// TestStatistics checks that the kernel refuses what rxe and siw do not have.
func TestStatistics(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		d := labtest.Must(rdmadev.Find(device))(t)
		// rxe has counters, so the kernel takes a mode. It binds no QP, which rxe cannot do.
		for _, byType := range []bool{true, false} {
			err := d.SetCounterAuto(1, byType, false)
			mode, merr := d.CounterMode(1)
			kind := map[bool]rdmadev.CounterKind{true: rdmadev.CounterAuto, false: rdmadev.CounterNone}[byType]
			if device == labtest.RXE && (err != nil || merr != nil || mode != rdmadev.CounterMode{Kind: kind, ByType: byType}) {
				t.Errorf("counters by type: %v, %v; then %+v, %v", byType, err, mode, merr)
			}
			if device == labtest.SIW && err == nil {
				t.Error("QPs are bound to counters")
			}
		}
		if _, err := d.BindCounter(1, 1, 0); err == nil {
			t.Error("a QP was bound to a counter")
		}
		if err := d.UnbindCounter(1, 1, 1); err == nil {
			t.Error("a QP was unbound from a counter")
		}
		if list, err := d.QPCounters(); err != nil || len(list) != 0 {
			t.Errorf("QP counters: %v, %v", list, err)
		}
		if list, err := d.MRCounters(); err != nil || len(list) != 0 {
			t.Errorf("MR counters: %v, %v", list, err)
		}
		if list, err := d.OptionalCounters(1); device == labtest.RXE && (err != nil || len(list) != 0) {
			t.Errorf("optional counters: %v, %v", list, err)
		}
		if err := d.SetOptionalCounters(1, "nosuch"); err == nil || device == labtest.RXE && !errors.Is(err, verbs.ErrRange) {
			t.Errorf("an optional counter that does not exist: %v", err)
		}
	})
}
