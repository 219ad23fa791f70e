package main

import (
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
	if c.JSON {
		type device struct {
			Name  string `json:"device"`
			GUID  string `json:"node_guid"`
			Node  string `json:"node"`
			Error string `json:"error,omitempty"`
		}
		list := make([]device, len(devs))
		for i, d := range devs {
			list[i] = device{d.Name, d.GUID.String(), d.Node, errorText(d.NodeErr)}
		}
		return printJSON(list)
	}
	fmt.Printf("    %-16s\t   %s\n    %-16s\t%s\n", "device", "node GUID", "------", "----------------")
	for _, d := range devs {
		note := ""
		if d.NodeErr != nil {
			note = "\t" + d.NodeErr.Error()
		}
		fmt.Printf("    %-16s\t%v%s\n", d.Name, d.GUID, note)
	}
	if len(devs) == 0 {
		_, err := uverbs.Open("") // which says what to do
		return err
	}
	return nil
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
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
