package dev

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/rdmadev"
)

// Stat is verbs stat, for kong.
type Stat struct {
	Show     statShow     `cmd:"" default:"withargs" help:"Show counters of ports, QPs and MRs, and how QPs are counted (default)."`
	Auto     statAuto     `cmd:"" help:"Count new QPs of a port by type, process or both, or no longer."`
	Bind     statBind     `cmd:"" help:"Count a QP by a set of counters of its own, or by that of other QPs."`
	Unbind   statUnbind   `cmd:"" help:"Count a QP by the counters of its port again."`
	Optional statOptional `cmd:"" help:"Show the optional counters of a port, or switch them on and off."`
}

func (c *Stat) Help() string {
	return `Shows the statistics that the kernel's RDMA core keeps, as "rdma statistic" does, and changes
how QPs are counted, which requires CAP_NET_ADMIN and a driver that can, such as mlx5.

Examples:

  verbs stat
  verbs stat mlx5_0
  verbs stat auto mlx5_0 1 --type
  verbs stat bind mlx5_0 1 178`
}

type statShow struct {
	Device string `arg:"" optional:"" placeholder:"DEVICE" help:"Name of a device; all by default."`
	JSON   bool   `help:"Print JSON."`
}

func (c *statShow) Help() string {
	return `A row begins with its port, set of counters of QPs, or MR. Counters that are 0 are left
out.

Examples:

  verbs stat show
  verbs stat mlx5_0 --json`
}

// statistic is a set of counters, as JSON.
type statistic struct {
	Device   string            `json:"device"`
	Port     int               `json:"port,omitempty"`
	Mode     string            `json:"qps_counted,omitempty"` // of a port
	Counter  uint32            `json:"counter,omitempty"`     // number of a set for QPs
	QPs      []uint32          `json:"qps,omitempty"`
	MR       *uint32           `json:"mr,omitempty"`
	Counters map[string]uint64 `json:"counters"`
}

func (c *statShow) Run(context.Context) error {
	devs, err := devices(os.Stdout, c.JSON, c.Device)
	if err != nil {
		return err
	}
	all := []statistic{}
	for _, d := range devs {
		for _, p := range d.Ports {
			counters, err := d.HardwareCounters(p.Num)
			if err != nil {
				continue // the driver has none
			}
			mode, _ := d.CounterMode(p.Num)
			all = append(all, statistic{Device: d.Name, Port: p.Num, Mode: modeText(mode), Counters: values(counters)})
		}
		qps, qerr := d.QPCounters()
		for _, q := range qps {
			all = append(all, statistic{Device: d.Name, Port: q.Port, Counter: q.Num, QPs: q.QPs, Counters: values(q.Counters)})
		}
		mrs, merr := d.MRCounters()
		for _, m := range mrs {
			all = append(all, statistic{Device: d.Name, MR: &m.Num, Counters: values(m.Counters)})
		}
		if err := errors.Join(qerr, merr); err != nil {
			return err
		}
	}
	if c.JSON {
		return cli.WriteJSON(os.Stdout, all)
	}
	t := cli.NewTable(os.Stdout, "OF", "QPS COUNTED", "COUNTER", "VALUE")
	for _, s := range all {
		of, counted := fmt.Sprintf("%s/%d", s.Device, s.Port), s.Mode
		switch {
		case s.MR != nil:
			of = fmt.Sprintf("%s MR %d", s.Device, *s.MR)
		case s.Counter != 0:
			of, counted = fmt.Sprintf("%s counter %d", of, s.Counter), "QP "+strings.Trim(fmt.Sprint(s.QPs), "[]")
		}
		for _, name := range slices.Sorted(maps.Keys(s.Counters)) {
			if v := s.Counters[name]; v != 0 {
				t.Row(of, counted, name, v)
			}
		}
	}
	return t.Flush()
}

// values returns the counters' values by name.
func values(counters []rdmadev.Counter) map[string]uint64 {
	m := map[string]uint64{}
	for _, c := range counters {
		m[c.Name] = c.Value
	}
	return m
}

// modeText describes how QPs of a port are counted.
func modeText(m rdmadev.CounterMode) string {
	text := m.Kind.String()
	if m.ByType {
		text += ", by type"
	}
	if m.ByPID {
		text += ", by process"
	}
	return text
}

// statPort is a port, as an argument.
type statPort struct {
	Device string `arg:"" placeholder:"DEVICE" help:"Name of the device."`
	Port   int    `arg:"" help:"Number of the port."`
}

type statAuto struct {
	statPort
	Type bool `help:"A set of counters for each type of QP."`
	PID  bool `name:"pid" help:"A set of counters for each process."`
}

func (c *statAuto) Help() string {
	return "With neither option, the port counts new QPs again.\n\nExamples:\n\n  verbs stat auto mlx5_0 1 --type --pid\n  verbs stat auto mlx5_0 1"
}

func (c *statAuto) Run(context.Context) error {
	return with(c.Device, func(d rdmadev.Device) error { return d.SetCounterAuto(c.Port, c.Type, c.PID) })
}

type statBind struct {
	statPort
	QP      uint32 `arg:"" name:"qp" help:"Number of the QP."`
	Counter uint32 `arg:"" optional:"" help:"Number of the set; a new one by default."`
	JSON    bool   `help:"Print JSON."`
}

func (c *statBind) Help() string {
	return "Prints the number of the set of counters.\n\nExamples:\n\n  verbs stat bind mlx5_0 1 178\n  verbs stat bind mlx5_0 1 179 4"
}

func (c *statBind) Run(context.Context) error {
	return with(c.Device, func(d rdmadev.Device) error {
		n, err := d.BindCounter(c.Port, c.QP, c.Counter)
		switch {
		case err != nil:
			return err
		case c.JSON:
			return cli.WriteJSON(os.Stdout, map[string]uint32{"counter": n})
		}
		_, err = fmt.Println(n)
		return err
	})
}

type statUnbind struct {
	statPort
	QP      uint32 `arg:"" name:"qp" help:"Number of the QP."`
	Counter uint32 `arg:"" help:"Number of the set."`
}

func (c *statUnbind) Help() string {
	return "Examples:\n\n  verbs stat unbind mlx5_0 1 178 4\n  verbs stat unbind mlx5_0 1 179 4"
}

func (c *statUnbind) Run(context.Context) error {
	return with(c.Device, func(d rdmadev.Device) error { return d.UnbindCounter(c.Port, c.QP, c.Counter) })
}

type statOptional struct {
	statPort
	On   []string `help:"Switch these counters on, and the others off."`
	Off  bool     `help:"Switch all off."`
	JSON bool     `help:"Print JSON."`
}

func (c *statOptional) Help() string {
	return "Examples:\n\n  verbs stat optional mlx5_0 1\n  verbs stat optional mlx5_0 1 --on cc_rx_ce_pkts,cc_tx_cnp_pkts"
}

func (c *statOptional) Run(context.Context) error {
	return with(c.Device, func(d rdmadev.Device) error {
		if len(c.On) > 0 || c.Off {
			return d.SetOptionalCounters(c.Port, c.On...)
		}
		list, err := d.OptionalCounters(c.Port)
		if err != nil {
			return err
		}
		type line struct {
			Counter string `json:"counter"`
			On      bool   `json:"on"`
		}
		var lines []line
		for _, o := range list {
			lines = append(lines, line{o.Name, o.On})
		}
		return cli.List(os.Stdout, c.JSON, lines, []string{"COUNTER", "ON"}, func(l line) []any { return []any{l.Counter, l.On} })
	})
}
