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
	Device string `arg:"" optional:"" placeholder:"DEVICE" help:"Name of a device; all by default."`
	JSON   bool   `help:"Print JSON."`
}

func (c *Stat) Help() string {
	return `Shows the statistics that the kernel's RDMA core keeps, as "rdma statistic" does, which also
changes how QPs are counted. A row begins with the port, the set of counters of QPs, or the
MR that it is about. Counters that are 0 are left out.

Examples:

  verbs stat
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

func (c *Stat) Run(context.Context) error {
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
