package info

import (
	"cmp"
	"fmt"
	"io"
	"os"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/uverbs"
)

// Devices is verbs devices, for kong.
type Devices struct {
	JSON bool `help:"Print JSON."`
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
		Error     string `json:"error,omitempty"`
	}
	list := make([]device, len(devs))
	for i, d := range devs {
		list[i] = device{Name: d.Name, GUID: d.GUID.String(), Node: d.Node}
		list[i].Transport, _ = transport(d)
		ctx, oerr := d.Open()
		if oerr != nil {
			list[i].Error = oerr.Error()
			err = cmp.Or(err, oerr)
			continue
		}
		list[i].Driver = ctx.Driver()
		ctx.Close()
	}
	if c.JSON {
		return cmp.Or(err, cli.WriteJSON(w, list))
	}
	// The first two columns are those of ibv_devices.
	row := func(name, guid, transport, driver string) {
		fmt.Fprintf(w, "    %-16s\t%-16s\t%-10s\t%s\n", name, guid, transport, driver)
	}
	row("device", "   node GUID", "transport", "driver")
	row("------", "----------------", "---------", "------")
	for _, d := range list {
		row(d.Name, d.GUID, d.Transport, cmp.Or(d.Driver, "unknown"))
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
