package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"

	"github.com/goverbs/verbs/uverbs"
)

type devicesCmd struct {
	JSON bool `help:"Print JSON."`
}

func (c *devicesCmd) Run() error {
	devs, err := uverbs.Devices()
	if err != nil {
		return err
	}
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
		// Only an open device tells its driver.
		if ctx, err := d.Open(); err != nil {
			list[i].Error = err.Error()
		} else {
			list[i].Driver = ctx.Driver()
			ctx.Close()
		}
	}
	if c.JSON {
		return printJSON(list)
	}
	// The first two columns are ibv_devices'.
	row := func(name, guid, transport, driver string) {
		fmt.Printf("    %-16s\t%-16s\t%-10s\t%s\n", name, guid, transport, driver)
	}
	row("device", "   node GUID", "transport", "driver")
	row("------", "----------------", "---------", "------")
	for _, d := range list {
		row(d.Name, d.GUID, d.Transport, cmp.Or(d.Driver, d.Error))
	}
	if len(devs) == 0 {
		_, err := uverbs.Open("") // which says what to do
		return err
	}
	return nil
}

func printJSON(v any) error {
	e := json.NewEncoder(os.Stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// devicesNamed returns the device of that name, or all if it is empty.
func devicesNamed(name string) ([]uverbs.Device, error) {
	devs, err := uverbs.Devices()
	if err != nil {
		return nil, err
	}
	if name == "" {
		if len(devs) == 0 {
			_, err = uverbs.Open("")
		}
		return devs, err
	}
	for _, d := range devs {
		if d.Name == name {
			return []uverbs.Device{d}, nil
		}
	}
	_, err = uverbs.Open(name)
	return nil, err
}
