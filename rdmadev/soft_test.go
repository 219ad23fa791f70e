package rdmadev_test

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
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
		if _, err := s.Find(made.Name()); !errors.Is(err, verbs.ErrNoDevice) {
			t.Errorf("%s: %v", name, err)
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
	for _, port := range []int{-1, 0, 2} {
		if _, err := d.HardwareCounters(port); !errors.Is(err, verbs.ErrRange) {
			t.Errorf("hardware counters of port %d: %v", port, err)
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
	if err := d.Delete(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("delete: %v", err)
	}
	if counters, err := d.QPCounters(); err != nil || counters != nil {
		t.Errorf("QP counters %v, %v", counters, err)
	}
}

// TestSoftObjects lists the objects on a device in user space: those of two contexts, and IDs.
func TestSoftObjects(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	made, err := soft.New(soft.Options{
		Network: verbstest.NewNetwork(verbstest.Options{}), Addrs: []netip.Addr{netip.MustParseAddr("198.51.100.2")},
	})
	must(err)
	defer made.Close()
	d, err := rdmadev.Find(made.Name())
	must(err)
	first, err := uverbs.Open(made.Name())
	must(err)
	defer first.Close()
	ctx, err := uverbs.Open(made.Name())
	must(err)
	defer ctx.Close()
	_, err = first.AllocPD()
	must(err)
	pd, err := ctx.AllocPD()
	must(err)
	mr, err := pd.RegisterMR(make([]byte, 5000), verbs.AccessLocalWrite, uverbs.MROptions{})
	must(err)
	cq, err := ctx.CreateCQ(uverbs.CQOptions{Depth: 100})
	must(err)
	srq, err := pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 10, MaxSGE: 1})
	must(err)
	rc, err := pd.CreateQP(uverbs.QPOptions{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, SRQ: srq, Cap: verbs.QPCap{MaxSendWR: 1, MaxSendSGE: 1}})
	must(err)
	ud, err := pd.CreateQP(uverbs.QPOptions{Type: verbs.UD, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxSendSGE: 1, MaxRecvWR: 1, MaxRecvSGE: 1}})
	must(err)
	transport := &cm.Transport{Host: made}
	defer transport.Close()
	l, err := (&cm.ListenConfig{Transport: transport}).Listen(t.Context(), "198.51.100.2:7471")
	must(err)
	defer l.Close()

	contexts, err := d.Contexts()
	must(err)
	if len(contexts) < 2 || contexts[0].PID != os.Getpid() || contexts[0].Comm == "" {
		t.Fatalf("contexts %+v", contexts)
	}
	own := contexts[1].Num
	pds, err := d.PDs()
	must(err)
	if len(pds) != 2 || pds[0].Context != contexts[0].Num || pds[1].Context != own || pds[1].Users != 4 || pds[0].Num == pds[1].Num {
		t.Errorf("PDs %+v", pds)
	}
	if mrs, err := d.MRs(); err != nil || len(mrs) != 1 || mrs[0].PD != pds[1].Num || mrs[0].Length != 5000 || mrs[0].LKey != mr.LKey() {
		t.Errorf("MRs %+v, %v", mrs, err)
	}
	if cqs, err := d.CQs(); err != nil || len(cqs) != 1 || cqs[0].Context != own || cqs[0].Depth < 100 || cqs[0].Users != 4 {
		t.Errorf("CQs %+v, %v", cqs, err)
	}
	if srqs, err := d.SRQs(); err != nil || len(srqs) != 1 || srqs[0].PD != pds[1].Num || !slices.Equal(srqs[0].QPs, []rdmadev.Range{{rc.Num(), rc.Num()}}) {
		t.Errorf("SRQs %+v, %v", srqs, err)
	}
	qps, err := d.QPs()
	must(err)
	slices.SortFunc(qps, func(a, b rdmadev.QP) int { return int(a.Num) - int(b.Num) })
	if len(qps) != 2 || qps[0].Num != rc.Num() || qps[0].Type != verbs.RC || qps[0].State != verbs.StateReset || qps[0].PD != pds[1].Num || qps[1].Num != ud.Num() || qps[1].Type != verbs.UD {
		t.Errorf("QPs %+v", qps)
	}
	if ids, err := d.CMIDs(); err != nil || len(ids) != 1 || ids[0].State != "LISTEN" || ids[0].PortSpace != "TCP" || ids[0].Local.String() != "198.51.100.2:7471" {
		t.Errorf("IDs %+v, %v", ids, err)
	}
	if n, err := d.Counts(); err != nil || n.QP != 2 || n.CMID != 1 || n.PD != 2 {
		t.Errorf("numbers %+v, %v", n, err)
	}
	made.Close()
	if qps, err := d.QPs(); !errors.Is(err, verbs.ErrNoDevice) {
		t.Errorf("QPs of a removed device %+v, %v", qps, err)
	}
	if n, err := d.Counts(); !errors.Is(err, verbs.ErrNoDevice) {
		t.Errorf("numbers of a removed device %+v, %v", n, err)
	}
}
