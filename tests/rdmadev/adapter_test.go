package rdmadev

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/internal/labtest/labdev"
	"github.com/goverbs/verbs/rdmadev"
	"github.com/goverbs/verbs/uverbs"
)

// adapter is what an adapter of the lab is known to be.
type adapter struct {
	infiniBand bool
	erdma      bool
	name       string
	mac        net.HardwareAddr
	guid       string
	lid        uint16
	addrs      []netip.Addr // GIDs: the port's own, and addresses of the network link
}

func adapterOf(t *testing.T, device string, infiniBand bool) adapter {
	t.Helper()
	i := byte(slices.Index(labdev.Adapters(labtest.Adapters()), device))
	a := adapter{infiniBand: infiniBand, erdma: labtest.IsERDMA(device), name: device, mac: net.HardwareAddr{0x02, 0x15, 0xb3, 0x09, i, 1}}
	a.guid = fmt.Sprintf("0015b3fffe09%02x01", i)
	number := uint16(i)<<8 | 1 // the end of the MAC address
	a.addrs = []netip.Addr{netip.MustParseAddr(fmt.Sprintf("fe80::15:b3ff:fe09:%x", number))}
	if infiniBand {
		a.lid = number
		return a
	}
	a.addrs = append(a.addrs, netip.MustParseAddr(labtest.AddrOf(device)), netip.MustParseAddr(labtest.Addr6Of(device)))
	return a
}

// TestAdapter reads the adapters that the lab emulates, driven by the kernel's mlx5, without
// opening them: rdmadev, the commands of verbs and the exporter show what the adapters are.
func TestAdapter(t *testing.T) {
	labtest.EachAdapter(t, func(t *testing.T, device string, infiniBand bool) {
		a := adapterOf(t, device, infiniBand)
		d := labtest.Must(rdmadev.Find(device))(t)
		if a.erdma {
			a.testERDMA(t, d)
			a.testOpen(t)
			return
		}
		if err := errors.Join(d.Errs...); err != nil {
			t.Error(err)
		}
		if len(d.Ports) != 1 {
			t.Fatalf("%d ports", len(d.Ports))
		}
		t.Run("device", func(t *testing.T) { a.testDevice(t, d) })
		t.Run("gids", func(t *testing.T) { a.testGIDs(t, d.Ports[0]) })
		t.Run("counters", func(t *testing.T) { a.testCounters(t, d) })
		t.Run("command", func(t *testing.T) { a.testCommand(t, d) })
		t.Run("open", func(t *testing.T) { a.testOpen(t) })
	})
}

// testERDMA checks what the kernel tells of an erdma, which is less than of a ConnectX: its link is another device.
func (a adapter) testERDMA(t *testing.T, d rdmadev.Device) {
	p := d.Ports[0]
	want := rdmadev.IWARP
	if d.Type != rdmadev.NodeRNIC {
		want = rdmadev.RoCE
	}
	for what, v := range map[string][2]any{
		"driver": {d.Driver, "erdma"}, "protocol": {d.Protocol, want}, "system GUID": {d.SystemGUID.String(), a.guid},
		"state": {p.State, verbs.PortActive}, "physical state": {p.PhysState, verbs.PhysLinkUp}, "link layer": {p.LinkLayer, verbs.LinkEthernet},
	} {
		if v[0] != v[1] {
			t.Errorf("%s is %v, want %v", what, v[0], v[1])
		}
	}
	if len(p.Interfaces) != 1 {
		t.Fatalf("interfaces %q", p.Interfaces)
	}
	if link := labtest.Must(net.InterfaceByName(p.Interfaces[0]))(t); link.HardwareAddr.String() != a.mac.String() {
		t.Errorf("interface %+v, want MAC address %v", link, a.mac)
	}
}

func (a adapter) testDevice(t *testing.T, d rdmadev.Device) {
	p := d.Ports[0]
	if err := errors.Join(p.Errs...); err != nil {
		t.Error(err)
	}
	protocol, layer, lanes, physical := rdmadev.RoCE, verbs.LinkEthernet, "EDR", verbs.PhysLinkUp
	if a.infiniBand {
		protocol, layer = rdmadev.InfiniBand, verbs.LinkInfiniBand
	}
	for what, v := range map[string][2]any{
		"driver":         {d.Driver, "mlx5_core"},
		"type":           {d.Type, rdmadev.NodeCA},
		"protocol":       {d.Protocol, protocol},
		"node GUID":      {d.NodeGUID.String(), a.guid},
		"system GUID":    {d.SystemGUID.String(), a.guid},
		"vendor":         {d.PCI.Vendor, uint16(0x15b3)},
		"board":          {d.Board, "GOV0000000001"},
		"state":          {p.State, verbs.PortActive},
		"physical state": {p.PhysState, physical},
		"link layer":     {p.LinkLayer, layer},
		"rate in Mb/s":   {p.Rate, 100_000},
		"lanes":          {p.Lanes, 4},
		"speed":          {p.Speed, lanes},
		"LID":            {p.LID, a.lid},
		"SM LID":         {p.SMLID, a.lid}, // the adapter is its own subnet manager
	} {
		if v[0] != v[1] {
			t.Errorf("%s is %v, want %v", what, v[0], v[1])
		}
	}
	if d.Firmware == "" || d.VerbsNode == "" {
		t.Errorf("firmware %q, node %q", d.Firmware, d.VerbsNode)
	}
	if a.infiniBand {
		if keys := labtest.Must(p.PKeys())(t); len(keys) == 0 || keys[0] != 0xffff {
			t.Errorf("P_Keys %#x, want the default one first", keys)
		}
		return
	}
	if len(p.Interfaces) != 1 {
		t.Fatalf("interfaces %q", p.Interfaces)
	}
	link := labtest.Must(net.InterfaceByName(p.Interfaces[0]))(t)
	if link.HardwareAddr.String() != a.mac.String() || link.Flags&net.FlagRunning == 0 {
		t.Errorf("interface %+v, want MAC address %v", link, a.mac)
	}
}

// testGIDs finds each address as a GID of the port's type, and no other but those of RoCE v1.
func (a adapter) testGIDs(t *testing.T, p rdmadev.Port) {
	want, link := verbs.GIDIB, ""
	if !a.infiniBand {
		want, link = verbs.GIDRoCEv2, strings.Join(p.Interfaces, " ")
	}
	gids := labtest.Must(p.GIDs())(t)
	var found []netip.Addr
	for _, g := range gids {
		addr := netip.AddrFrom16(g.GID).Unmap()
		if !slices.Contains(a.addrs, addr) || g.Interface != link || g.Type != want && (a.infiniBand || g.Type != verbs.GIDRoCEv1) {
			t.Errorf("GID %+v", g)
		}
		if g.Type == want {
			found = append(found, addr)
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	slices.SortFunc(a.addrs, netip.Addr.Compare)
	if !slices.Equal(found, a.addrs) {
		t.Errorf("GIDs %+v, want %v of type %v", gids, a.addrs, want)
	}
}

// testCounters compares the counters of rdmadev with those of the exporter.
func (a adapter) testCounters(t *testing.T, d rdmadev.Device) {
	counters := labtest.Must(d.Ports[0].Counters())(t)
	for _, want := range []rdmadev.Counter{{Name: "port_xmit_data"}, {Name: "out_of_buffer", Hardware: true}} {
		if !slices.ContainsFunc(counters, func(c rdmadev.Counter) bool { return c.Name == want.Name && c.Hardware == want.Hardware }) {
			t.Errorf("there is no %+v in %+v", want, counters)
		}
	}
	text := "\n" + output(t, labtest.Built(t, "verbs-exporter"), "--once", "--device.include="+a.name)
	protocol := "roce"
	if a.infiniBand {
		protocol = "ib"
	}
	for _, line := range []string{
		"rdma_devices 1\n",
		"rdma_read_failures 0\n",
		`node_infiniband_state_id{device="` + a.name + `",port="1"} 4` + "\n",
		`node_infiniband_rate_bytes_per_second{device="` + a.name + `",port="1"} 1.25e+10` + "\n",
		`rdma_device_info{device="` + a.name + `",driver="mlx5_core",numa_node="-1",pci="` + d.PCI.Addr + `",protocol="` + protocol + `"} 1` + "\n",
		`node_infiniband_port_data_transmitted_bytes_total{device="` + a.name + `",port="1"} `,
		`node_infiniband_out_of_buffer_drops_total{device="` + a.name + `",port="1"} `,
		`rdma_resources{device="` + a.name + `",kind="qp"} `,
	} {
		if !strings.Contains(text, "\n"+line) {
			t.Errorf("there is no %s in%s", line, text)
		}
	}
	if got := strings.Count(text, `{device="`+a.name+`",port="1"} `); got != len(counters)+3 { // state, physical state and rate
		t.Errorf("the exporter has %d series of the port, there are %d counters:%s", got, len(counters), text)
	}
}

// testCommand compares what verbs prints.
func (a adapter) testCommand(t *testing.T, d rdmadev.Device) {
	program := labtest.Built(t, "verbs")
	type line struct {
		Device, Driver, Protocol, Node string
		GUID                           string       `json:"node_guid"`
		States                         []string     `json:"port_states"`
		Addrs                          []netip.Addr `json:"addresses"`
	}
	var lines []line
	labtest.Check(t, json.Unmarshal([]byte(output(t, program, "devices", "--json")), &lines))
	i := slices.IndexFunc(lines, func(l line) bool { return l.Device == a.name })
	if i < 0 {
		t.Fatalf("verbs devices has no %s: %+v", a.name, lines)
	}
	l := lines[i]
	if l.Driver != d.Driver || l.Protocol != string(d.Protocol) || l.GUID != a.guid || l.Node != "/dev/infiniband/"+d.VerbsNode || !slices.Equal(l.States, []string{"ACTIVE"}) {
		t.Errorf("verbs devices: %+v", l)
	}
	if a.infiniBand && len(l.Addrs) > 0 || !a.infiniBand && !slices.ContainsFunc(l.Addrs, func(x netip.Addr) bool { return x.Is4() && slices.Contains(a.addrs, x) }) {
		t.Errorf("verbs devices: addresses %v", l.Addrs)
	}
	var ports []struct {
		GIDs []struct{ GID, Type string }
	}
	labtest.Check(t, json.Unmarshal([]byte(output(t, program, "ports", a.name, "--gids", "--json")), &ports))
	if gids := labtest.Must(d.Ports[0].GIDs())(t); len(ports) != 1 || len(ports[0].GIDs) != len(gids) {
		t.Errorf("verbs ports: %+v, want %d GIDs", ports, len(gids))
	}
	var counters []struct{ Name string }
	labtest.Check(t, json.Unmarshal([]byte(output(t, program, "counters", a.name, "--all", "--json")), &counters))
	if n := len(labtest.Must(d.Ports[0].Counters())(t)); len(counters) != n {
		t.Errorf("verbs counters: %+v, want %d", counters, n)
	}
}

// testOpen opens the device. Without a provider for mlx5 the error names the kernel's driver, also
// that of the command.
func (a adapter) testOpen(t *testing.T) {
	ctx, err := uverbs.Open(a.name)
	if err == nil {
		defer ctx.Close()
		if ctx.Driver() != map[bool]string{false: "mlx5", true: "erdma"}[a.erdma] {
			t.Errorf("the driver is %s", ctx.Driver())
		}
		return
	}
	if !errors.Is(err, verbs.ErrNoDriver) || !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), a.name) || !strings.Contains(err.Error(), "(mlx5)") {
		t.Errorf("open: %v", err)
	}
	out, cerr := exec.CommandContext(t.Context(), labtest.Built(t, "verbs"), "info", a.name).CombinedOutput()
	if cerr == nil || !strings.Contains(string(out), err.Error()) {
		t.Errorf("verbs info: %v\n%s\nwant %v", cerr, out, err)
	}
}
