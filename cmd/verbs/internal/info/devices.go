package info

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/uverbs"
)

// Devices is verbs devices, for kong.
type Devices struct {
	JSON bool `help:"Print JSON."`
}

func (c *Devices) Help() string {
	return `The list has the state of each port, the network interfaces, and the addresses that
lead to the device: those to listen on and to dial.

Examples:

  verbs devices
  verbs devices --json`
}

func (c *Devices) Run() error {
	devs, err := devicesAt("")
	return cmp.Or(c.print(os.Stdout, devs), err)
}

// print lists devices. A device that cannot be opened is listed without its driver
// and is an error.
func (c *Devices) print(w io.Writer, devs []uverbs.Device) (err error) {
	type device struct {
		Name      string `json:"device"`
		GUID      string `json:"node_guid"`
		Transport string `json:"transport"`
		Driver    string `json:"driver,omitempty"`
		Node      string `json:"node"`

		Ports      []string     `json:"port_states,omitempty"`
		Interfaces []string     `json:"interfaces,omitempty"`
		Addrs      []netip.Addr `json:"addresses,omitempty"`

		Error string `json:"error,omitempty"`
	}
	list := make([]device, len(devs))
	for i, d := range devs {
		list[i] = device{Name: d.Name, GUID: d.GUID.String(), Node: d.Node}
		list[i].Transport, _ = transport(d)
		list[i].Interfaces = d.Interfaces()
		list[i].Addrs, _ = cm.DeviceAddrs(d) // none is no error: it may be down
		ctx, oerr := d.Open()
		if oerr != nil {
			list[i].Error = oerr.Error()
			err = cmp.Or(err, oerr)
			continue
		}
		list[i].Driver = ctx.Driver()
		for port := 1; port <= d.Ports; port++ {
			attr, perr := ctx.QueryPort(port)
			if perr != nil {
				err = cmp.Or(err, perr)
				continue
			}
			list[i].Ports = append(list[i].Ports, attr.State.String())
		}
		ctx.Close()
	}
	if c.JSON {
		return cmp.Or(err, cli.WriteJSON(w, list))
	}
	// The first two columns are those of ibv_devices.
	row := func(name, guid, transport, driver, ports, interfaces, addrs string) {
		fmt.Fprintf(w, "    %-16s\t%-16s\t%-10s\t%-8s %-8s %-9s  %s\n", name, guid, transport, driver, ports, interfaces, addrs)
	}
	row("device", "   node GUID", "transport", "driver", "state", "interface", "addresses")
	row("------", "----------------", "---------", "------", "-----", "---------", "---------")
	for _, d := range list {
		addrs := make([]string, len(d.Addrs))
		for i, a := range d.Addrs {
			addrs[i] = a.String()
		}
		joined := func(s []string) string { return cmp.Or(strings.Join(s, ","), "-") }
		row(d.Name, d.GUID, d.Transport, cmp.Or(d.Driver, "unknown"), joined(d.Ports), joined(d.Interfaces), joined(addrs))
	}
	return err
}

// devicesAt returns the device that spec describes, see [uverbs.Find], or all if it is
// empty. It is an error if there are none.
func devicesAt(spec string) ([]uverbs.Device, error) {
	if spec == "" {
		devs, err := uverbs.Devices()
		if err != nil || len(devs) > 0 {
			return devs, err
		}
	}
	d, err := uverbs.Find(spec)
	if err != nil {
		return nil, err
	}
	return []uverbs.Device{d}, nil
}
