package dev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/rdmadev"
)

// Monitor is verbs monitor, for kong.
type Monitor struct {
	Interval time.Duration `default:"1s" help:"Time between two looks at the ports."`
	JSON     bool          `help:"Print JSON, a line for each change."`
}

func (c *Monitor) Help() string {
	return `Prints the devices, and then each change: devices that come, go and are renamed,
ports whose state or link changes, network interfaces that ports get and lose.

Examples:

  verbs monitor
  verbs monitor --json --interval 100ms`
}

func (c *Monitor) Run(ctx context.Context) error {
	if devs, err := source.Devices(); err == nil && len(devs) == 0 {
		cli.Warn(os.Stderr, errors.New("there are no RDMA devices; waiting for one"))
	}
	for change, err := range source.Watch(ctx, rdmadev.WatchOptions{Interval: c.Interval}) {
		if ctx.Err() != nil {
			return nil // how it usually ends
		}
		if err != nil {
			return err
		}
		if err := c.print(time.Now(), change); err != nil {
			return err
		}
	}
	return nil
}

func (c *Monitor) print(now time.Time, change rdmadev.Change) error {
	d := change.New
	if change.Kind == rdmadev.DeviceRemoved {
		d = change.Old
	}
	detail := ""
	if change.Kind == rdmadev.DeviceRenamed {
		detail = "was " + change.Old.Name
	}
	for _, p := range d.Ports {
		if p.Num != change.Port {
			continue
		}
		switch change.Kind {
		case rdmadev.PortChanged:
			detail = fmt.Sprintf("%v, %v", p.State, p.PhysState)
		case rdmadev.LinkChanged:
			detail = fmt.Sprintf("%g Gb/s", float64(p.Rate)/1000)
		case rdmadev.InterfacesChanged:
			detail = strings.Join(p.Interfaces, ",")
		}
	}
	if c.JSON {
		return cli.WriteJSONLine(os.Stdout, struct {
			Time   time.Time          `json:"time"`
			Kind   rdmadev.ChangeKind `json:"change"`
			Device string             `json:"device"`
			Index  int                `json:"index"`
			Port   int                `json:"port,omitempty"`
			Detail string             `json:"detail,omitempty"`
		}{now, change.Kind, d.Name, d.Index, change.Port, detail})
	}
	name, detail := cli.Printable(d.Name), cli.Printable(detail)
	if change.Port != 0 {
		name += fmt.Sprintf("/%d", change.Port)
	}
	_, err := fmt.Println(strings.TrimSpace(fmt.Sprintf("%s  %s  %-18s  %s", now.Format("15:04:05.000"), name, change.Kind, detail)))
	return err
}
