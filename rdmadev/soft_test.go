package rdmadev_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/rdmadev"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/uverbs"
	"github.com/goverbs/verbs/verbstest"
)

// TestSoft lists a device in user space, with everything that it has.
func TestSoft(t *testing.T) {
	made, err := soft.New(soft.Options{
		Network: verbstest.NewNetwork(verbstest.Options{}), Addrs: []netip.Addr{netip.MustParseAddr("198.51.100.1")},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer made.Close()
	d, err := rdmadev.Find(made.Name())
	if err != nil || d.Protocol != rdmadev.RoCE || d.Driver != "soft" || d.Index < 1<<30 || len(d.Ports) != 1 || len(d.Errs) > 0 {
		t.Fatalf("%+v, %v", d, err)
	}
	has := func(name string) func(rdmadev.Device) bool {
		return func(d rdmadev.Device) bool { return d.Name == name }
	}
	if all, err := rdmadev.Devices(); err != nil || !slices.ContainsFunc(all, has(made.Name())) {
		t.Errorf("devices %+v, %v", all, err)
	}
	for name, s := range map[string]rdmadev.Source{
		"filtered":    {Filter: func(name string) bool { return name != made.Name() }},
		"other sysfs": {Sys: t.TempDir()},
	} {
		if all, err := s.Devices(); err != nil || slices.ContainsFunc(all, has(made.Name())) {
			t.Errorf("%s: devices %+v, %v", name, all, err)
		}
		if name == "other sysfs" {
			if _, err := s.Find(made.Name()); !errors.Is(err, verbs.ErrNoDevice) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	p := d.Ports[0]
	if p.Num != 1 || p.State != verbs.PortActive || p.LinkLayer != verbs.LinkEthernet || p.Rate == 0 {
		t.Errorf("port %+v", p)
	}
	if gids, err := p.GIDs(); err != nil || len(gids) != 1 || gids[0].GID.Addr() != made.Addrs()[0] || gids[0].Type != verbs.GIDRoCEv2 {
		t.Errorf("GIDs %+v, %v", gids, err)
	}
	if keys, err := p.PKeys(); err != nil || !slices.Equal(keys, []uint16{0xffff}) {
		t.Errorf("P_Keys %x, %v", keys, err)
	}
	for what, read := range map[string]func() ([]rdmadev.Counter, error){
		"counters":          p.Counters,
		"hardware counters": func() ([]rdmadev.Counter, error) { return d.HardwareCounters(1) },
	} {
		list, err := read()
		if err != nil || len(list) != len(made.Stats()) || !slices.ContainsFunc(list, func(c rdmadev.Counter) bool { return c.Name == "sent_pkts" && c.Hardware }) {
			t.Errorf("%s %+v, %v", what, list, err)
		}
	}
	ctx, err := uverbs.Open(made.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer ctx.Close()
	pd, err := ctx.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	defer pd.Close()
	if n, err := d.Counts(); err != nil || n != (rdmadev.Counts{Context: 1, PD: 1}) {
		t.Errorf("resources %+v, %v", n, err)
	}
	if _, err := d.QPs(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("list of QPs: %v", err)
	}
	if err := d.Delete(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("delete: %v", err)
	}
	if counters, err := d.QPCounters(); err != nil || counters != nil {
		t.Errorf("QP counters %v, %v", counters, err)
	}
}
