package dev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/rdmadev"
)

// Stat is verbs stat, for kong.
type Stat struct {
	Show     StatShow     `cmd:"" default:"withargs" help:"Show counters of ports, QPs and MRs, and how QPs are counted (default)."`
	Auto     StatAuto     `cmd:"" help:"Count new QPs of a port by type, process or both, or no longer."`
	Bind     StatBind     `cmd:"" help:"Count a QP by a set of counters of its own, or of others."`
	Unbind   StatUnbind   `cmd:"" help:"Count a QP by the counters of its port again."`
	Optional StatOptional `cmd:"" help:"Show the optional counters of a port, or switch them on and off."`
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

// StatShow is verbs stat show, for kong.
type StatShow struct {
	Device string `arg:"" optional:"" help:"Name of a device; all by default."`
	JSON   bool   `help:"Print JSON."`
}

func (c *StatShow) Help() string {
	return `A row begins with the port, the set of counters of QPs, or the MR that it is about. Counters
that are 0 are left out.

Examples:

  verbs stat show
  verbs stat mlx5_0 --json`
}

// statistics are those of a device.
type statistics struct {
	Device string               `json:"device"`
	Ports  []portStatistics     `json:"ports"`
	QPs    []rdmadev.QPCounter  `json:"qp_counters,omitempty"`
	MRs    []rdmadev.MRCounters `json:"mr_counters,omitempty"`
}

type portStatistics struct {
	Port     int                 `json:"port"`
	Mode     rdmadev.CounterMode `json:"mode"`
	Counters []rdmadev.Counter   `json:"counters"`
}

func (c *StatShow) Run(context.Context) error {
	devs, err := devices(c.Device)
	if err != nil {
		return err
	}
	all := []statistics{}
	for _, d := range devs {
		s := statistics{Device: d.Name, Ports: []portStatistics{}}
		for _, p := range d.Ports {
			counters, err := d.HardwareCounters(p.Num)
			if err != nil {
				continue // the driver has none
			}
			mode, _ := d.CounterMode(p.Num)
			s.Ports = append(s.Ports, portStatistics{p.Num, mode, counters})
		}
		qps, qerr := d.QPCounters()
		mrs, merr := d.MRCounters()
		if s.QPs, s.MRs, err = qps, mrs, errors.Join(err, qerr, merr); err != nil {
			return err
		}
		all = append(all, s)
	}
	if c.JSON {
		return cli.WriteJSON(os.Stdout, all)
	}
	t := newTable(os.Stdout, "OF", "QPS COUNTED", "COUNTER", "VALUE")
	list := func(of string, mode any, counters []rdmadev.Counter) {
		for _, v := range counters {
			if v.Value != 0 {
				t.row(of, mode, v.Name, v.Value)
			}
		}
	}
	for _, s := range all {
		for _, p := range s.Ports {
			list(fmt.Sprintf("%s/%d", s.Device, p.Port), modeText(p.Mode), p.Counters)
		}
		for _, q := range s.QPs {
			numbers := strings.Trim(fmt.Sprint(q.QPs), "[]")
			list(fmt.Sprintf("%s/%d counter %d", s.Device, q.Port, q.Num), "QP "+numbers, q.Counters)
		}
		for _, m := range s.MRs {
			list(fmt.Sprintf("%s MR %d", s.Device, m.Num), "", m.Counters)
		}
	}
	return t.flush()
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

// StatPort is a port, as an argument.
type StatPort struct {
	Device string `arg:"" help:"Name of the device."`
	Port   int    `arg:"" help:"Number of the port."`
}

// StatAuto is verbs stat auto, for kong.
type StatAuto struct {
	StatPort
	Type bool `help:"A set of counters for each type of QP."`
	PID  bool `name:"pid" help:"A set of counters for each process."`
}

func (c *StatAuto) Help() string {
	return "With neither option, new QPs are counted by the port again.\n\nExamples:\n\n  verbs stat auto mlx5_0 1 --type --pid\n  verbs stat auto mlx5_0 1"
}

func (c *StatAuto) Run(context.Context) error {
	return with(c.Device, func(d rdmadev.Device) error { return d.SetCounterAuto(c.Port, c.Type, c.PID) })
}

// StatBind is verbs stat bind, for kong.
type StatBind struct {
	StatPort
	QP      uint32 `arg:"" name:"qp" help:"Number of the QP."`
	Counter uint32 `arg:"" optional:"" help:"Number of the set; a new one by default."`
}

func (c *StatBind) Help() string {
	return "Prints the number of the set of counters.\n\nExamples:\n\n  verbs stat bind mlx5_0 1 178\n  verbs stat bind mlx5_0 1 179 4"
}

func (c *StatBind) Run(context.Context) error {
	return with(c.Device, func(d rdmadev.Device) error {
		n, err := d.BindCounter(c.Port, c.QP, c.Counter)
		if err == nil {
			fmt.Println(n)
		}
		return err
	})
}

// StatUnbind is verbs stat unbind, for kong.
type StatUnbind struct {
	StatPort
	QP      uint32 `arg:"" name:"qp" help:"Number of the QP."`
	Counter uint32 `arg:"" help:"Number of the set."`
}

func (c *StatUnbind) Help() string {
	return "Examples:\n\n  verbs stat unbind mlx5_0 1 178 4\n  verbs stat unbind mlx5_0 1 179 4"
}

func (c *StatUnbind) Run(context.Context) error {
	return with(c.Device, func(d rdmadev.Device) error { return d.UnbindCounter(c.Port, c.QP, c.Counter) })
}

// StatOptional is verbs stat optional, for kong.
type StatOptional struct {
	StatPort
	On  []string `help:"Switch these counters on, and the others off."`
	Off bool     `help:"Switch all off."`
}

func (c *StatOptional) Help() string {
	return "Examples:\n\n  verbs stat optional mlx5_0 1\n  verbs stat optional mlx5_0 1 --on cc_rx_ce_pkts,cc_tx_cnp_pkts"
}

func (c *StatOptional) Run(context.Context) error {
	return with(c.Device, func(d rdmadev.Device) error {
		if len(c.On) > 0 || c.Off {
			return d.SetOptionalCounters(c.Port, c.On...)
		}
		list, err := d.OptionalCounters(c.Port)
		if err != nil {
			return err
		}
		t := newTable(os.Stdout, "COUNTER", "ON")
		for _, o := range list {
			t.row(o.Name, o.On)
		}
		return t.flush()
	})
}
