package dev

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/rdmadev"
)

// Counters is verbs counters, for kong.
type Counters struct {
	Device   string        `arg:"" optional:"" placeholder:"DEVICE" help:"Name of a device; all by default."`
	All      bool          `short:"a" help:"Also show counters that are 0, or do not change."`
	Watch    bool          `short:"w" help:"Print how fast counters grow, until interrupted."`
	Interval time.Duration `default:"1s" help:"Time between two lists of --watch."`
	Count    int           `short:"n" help:"End --watch after so many lists."`
	JSON     bool          `help:"Print JSON, with --watch one line for each list."`
}

func (c *Counters) Help() string {
	return `Shows the counters of ports, of devices of every driver: those that the InfiniBand
specification defines, and those of the driver, marked with *. A counter that has stopped at
its largest value is marked with +.

Examples:

  verbs counters
  verbs counters mlx5_0 --watch
  verbs counters --json --watch --interval 10s`
}

func (c *Counters) Run(ctx context.Context) error { return c.print(ctx, os.Stdout) }

// counterKey identifies a counter.
type counterKey struct {
	device   string
	port     int
	name     string
	hardware bool
}

type counterLine struct {
	Device    string       `json:"device"`
	Port      int          `json:"port"`
	Name      string       `json:"name"`
	Hardware  bool         `json:"hardware"`
	Value     uint64       `json:"value"`
	Unit      rdmadev.Unit `json:"unit,omitempty"`
	Saturated bool         `json:"saturated,omitempty"`
	Rate      *float64     `json:"per_second,omitempty"`
}

func (c *Counters) print(ctx context.Context, w io.Writer) error {
	var before map[counterKey]rdmadev.Counter
	var last time.Time
	for n := 0; ; n++ {
		now := time.Now()
		values := map[counterKey]rdmadev.Counter{}
		lines, err := c.read(w, values)
		if err != nil {
			return err
		}
		if !c.Watch {
			return c.list(w, lines)
		}
		if before != nil {
			if err := c.list(w, c.rates(lines, before, values, now.Sub(last))); err != nil {
				return err
			}
		}
		if before, last = values, now; c.Count > 0 && n == c.Count {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil // how --watch usually ends
		case <-time.After(c.Interval):
		}
	}
}

// read reads all counters, also into values.
func (c *Counters) read(w io.Writer, values map[counterKey]rdmadev.Counter) ([]counterLine, error) {
	devs, err := devices(w, c.JSON && !c.Watch, c.Device)
	if err != nil {
		return nil, err
	}
	lines := []counterLine{}
	for _, d := range devs {
		for _, p := range d.Ports {
			list, err := p.Counters()
			if err != nil {
				cli.Warn(os.Stderr, err)
			}
			for _, v := range list {
				values[counterKey{d.Name, p.Num, v.Name, v.Hardware}] = v
				if !c.All && !c.Watch && v.Value == 0 {
					continue
				}
				lines = append(lines, counterLine{
					Device: d.Name, Port: p.Num, Name: v.Name, Hardware: v.Hardware, Value: v.Value, Unit: v.Unit,
					Saturated: v.Max != 0 && v.Value == v.Max,
				})
			}
		}
	}
	return lines, nil
}

// rates adds the rates to lines, and removes those that do not change.
func (c *Counters) rates(lines []counterLine, before, after map[counterKey]rdmadev.Counter, elapsed time.Duration) []counterLine {
	changed := []counterLine{}
	for _, l := range lines {
		k := counterKey{l.Device, l.Port, l.Name, l.Hardware}
		old, ok := before[k]
		if !ok {
			continue
		}
		grown, _ := after[k].Since(old)
		if grown == 0 && !c.All {
			continue
		}
		rate := float64(grown) / elapsed.Seconds()
		l.Rate = &rate
		changed = append(changed, l)
	}
	return changed
}

func (c *Counters) list(w io.Writer, lines []counterLine) error {
	if c.JSON && c.Watch {
		return cli.WriteJSONLine(w, lines)
	}
	header := []string{"PORT", "COUNTER", "VALUE"}
	if c.Watch {
		header = append(header, "PER SECOND")
	}
	return cli.List(w, c.JSON, lines, header, func(l counterLine) []any {
		name, value := l.Name, fmt.Sprint(l.Value)
		if l.Hardware {
			name += "*"
		}
		if l.Saturated {
			value += "+"
		}
		if l.Unit != "" {
			value += " " + string(l.Unit)
		}
		row := []any{fmt.Sprintf("%s/%d", l.Device, l.Port), name, value}
		if l.Rate != nil {
			row = append(row, fmt.Sprintf("%.6g", *l.Rate))
		}
		return row
	})
}
