package dev

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
)

// Ports is verbs ports, for kong.
type Ports struct {
	Device string `arg:"" optional:"" placeholder:"DEVICE" help:"Name of a device; all by default."`
	GIDs   bool   `name:"gids" help:"Also show the GID table."`
	JSON   bool   `help:"Print JSON."`
}

func (c *Ports) Help() string {
	return `Shows the ports of devices of every driver, without opening them: the state, the link, and
the network interfaces that lead to a port.

Examples:

  verbs ports
  verbs ports mlx5_0 --gids
  verbs ports --json`
}

func (c *Ports) Run(context.Context) error { return c.print(os.Stdout) }

type portLine struct {
	Device     string    `json:"device"`
	Port       int       `json:"port"`
	Protocol   string    `json:"protocol,omitempty"`
	State      string    `json:"state"`
	PhysState  string    `json:"physical_state"`
	LinkLayer  string    `json:"link_layer"`
	Rate       int       `json:"rate_mbps,omitempty"`
	Lanes      int       `json:"lanes,omitempty"`
	Speed      string    `json:"lane_speed,omitempty"`
	LID        uint16    `json:"lid,omitempty"`
	SMLID      uint16    `json:"sm_lid,omitempty"`
	Interfaces []string  `json:"interfaces,omitempty"`
	GIDs       []gidLine `json:"gids,omitempty"`
	Error      string    `json:"error,omitempty"`
}

type gidLine struct {
	Index     int       `json:"index"`
	GID       verbs.GID `json:"gid"`
	Type      string    `json:"type"`
	Interface string    `json:"interface,omitempty"`
}

func (c *Ports) print(w io.Writer) error {
	devs, err := devices(w, c.JSON, c.Device)
	if err != nil {
		return err
	}
	var lines []portLine
	for _, d := range devs {
		for _, p := range d.Ports {
			l := portLine{
				Device: d.Name, Port: p.Num, Protocol: string(d.Protocol), State: p.State.String(), PhysState: p.PhysState.String(),
				LinkLayer: p.LinkLayer.String(), Rate: p.Rate, Lanes: p.Lanes, Speed: p.Speed, Interfaces: p.Interfaces,
			}
			if p.LinkLayer == verbs.LinkInfiniBand {
				l.LID, l.SMLID = p.LID, p.SMLID
			}
			failed := p.Errs
			if c.GIDs {
				gids, err := p.GIDs()
				if err != nil {
					failed = append(failed, err)
				}
				for _, g := range gids {
					l.GIDs = append(l.GIDs, gidLine{g.Index, g.GID, g.Type.String(), g.Interface})
				}
			}
			l.Error = oneLine(failed)
			lines = append(lines, l)
		}
	}
	err = cli.List(w, c.JSON, lines, []string{"PORT", "PROTOCOL", "STATE", "PHYSICAL", "LINK", "RATE", "LID", "INTERFACES"}, func(l portLine) []any {
		rate, lid := "", ""
		if l.Rate > 0 {
			rate = fmt.Sprintf("%g Gb/s %dX %s", float64(l.Rate)/1000, l.Lanes, l.Speed)
		}
		if l.LID != 0 {
			lid = fmt.Sprint(l.LID)
		}
		return []any{fmt.Sprintf("%s/%d", l.Device, l.Port), l.Protocol, l.State, l.PhysState, l.LinkLayer, rate, lid, strings.Join(l.Interfaces, ",")}
	})
	if err != nil || c.JSON {
		return err
	}
	if c.GIDs {
		fmt.Fprintln(w)
		t := cli.NewTable(w, "PORT", "INDEX", "GID", "TYPE", "INTERFACE")
		for _, l := range lines {
			for _, g := range l.GIDs {
				t.Row(fmt.Sprintf("%s/%d", l.Device, l.Port), g.Index, g.GID, g.Type, g.Interface)
			}
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	for _, l := range lines {
		if l.Error != "" {
			cli.Warn(os.Stderr, fmt.Errorf("%s, port %d: %s", l.Device, l.Port, l.Error))
		}
	}
	return nil
}
