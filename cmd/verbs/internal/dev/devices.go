package dev

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/rdmadev"
	"github.com/goverbs/verbs/uverbs"
)

// Devices is verbs devices, for kong.
type Devices struct {
	JSON bool `help:"Print JSON."`
}

func (c *Devices) Help() string {
	return `Lists devices of every driver, without opening them, with the state of each port, the
network interfaces, and the addresses of the device: listen on these and dial them.

Examples:

  verbs devices
  verbs devices --json`
}

func (c *Devices) Run(context.Context) error {
	devs, err := devices(os.Stdout, c.JSON, "")
	if err != nil {
		return err
	}
	return c.print(os.Stdout, devs)
}

type deviceLine struct {
	Name       string           `json:"device"`
	GUID       string           `json:"node_guid"`
	Protocol   rdmadev.Protocol `json:"protocol,omitempty"`
	Driver     string           `json:"driver,omitempty"`
	Node       string           `json:"node,omitempty"`
	Firmware   string           `json:"fw_ver,omitempty"`
	PCI        string           `json:"pci_addr,omitempty"`
	NUMANode   *int             `json:"numa_node,omitempty"` // of PCI devices, -1 if unknown
	Ports      []string         `json:"port_states,omitempty"`
	Interfaces []string         `json:"interfaces,omitempty"`
	Addrs      []netip.Addr     `json:"addresses,omitempty"`
	Error      string           `json:"error,omitempty"`
}

func (c *Devices) print(w io.Writer, devs []rdmadev.Device) error {
	lines := []deviceLine{}
	for _, d := range devs {
		l := deviceLine{Name: d.Name, GUID: d.NodeGUID.String(), Protocol: d.Protocol, Driver: d.Driver, Firmware: d.Firmware, PCI: d.PCI.Addr}
		if l.PCI != "" { // as verbs info
			l.NUMANode = &d.NUMANode
		}
		if d.VerbsNode != "" {
			l.Node = "/dev/infiniband/" + d.VerbsNode
		}
		failed := d.Errs
		for _, p := range d.Ports {
			l.Ports = append(l.Ports, p.State.String())
			failed = append(failed, p.Errs...)
			for _, name := range p.Interfaces {
				if !slices.Contains(l.Interfaces, name) {
					l.Interfaces = append(l.Interfaces, name)
				}
			}
		}
		// None is no error: the device may be down, or the node of rdma_cm missing.
		u, err := uverbs.Find(d.Name)
		if err != nil {
			u = uverbs.Device{Name: d.Name}
		}
		l.Addrs, _ = cm.DeviceAddrs(u)
		l.Error = oneLine(failed)
		lines = append(lines, l)
	}
	if c.JSON {
		return cli.WriteJSON(w, lines)
	}
	if err := printDevices(w, lines); err != nil {
		return err
	}
	for _, l := range lines {
		if l.Error != "" {
			cli.Warn(os.Stderr, fmt.Errorf("%s: %s", l.Name, l.Error))
		}
	}
	return nil
}

func printDevices(w io.Writer, lines []deviceLine) error {
	rows := [][]any{
		{"device", "   node GUID", "protocol", "driver", "state", "interface", "addresses"},
		{"------", "----------------", "--------", "------", "-----", "---------", "---------"},
	}
	for _, l := range lines {
		addrs := make([]string, len(l.Addrs))
		for i, a := range l.Addrs {
			addrs[i] = a.String()
		}
		joined := func(s ...string) string { return cmp.Or(cli.Printable(strings.Join(s, ",")), "-") }
		rows = append(rows, []any{joined(l.Name), l.GUID, joined(string(l.Protocol)), joined(l.Driver), joined(l.Ports...), joined(l.Interfaces...), joined(addrs...)})
	}
	// The first two columns look as in ibv_devices.
	var text strings.Builder
	for _, row := range rows {
		fmt.Fprintf(&text, "    %-16s\t%-16s\t%-8s  %-9s %-8s %-9s  %s\n", row...)
	}
	if cli.Fits(text.String(), cli.Width(w)) {
		_, err := io.WriteString(w, text.String())
		return err
	}
	t := cli.NewTable(w, "device", "node GUID", "protocol", "driver", "state", "interface", "addresses")
	for _, row := range rows[2:] {
		t.Row(row...)
	}
	return t.Flush()
}
