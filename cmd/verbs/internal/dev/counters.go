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
	All      bool          `short:"a" help:"Also show counters that are 0 or do not change."`
	Watch    bool          `short:"w" help:"Print how fast counters grow, until interrupted."`
	Interval time.Duration `default:"1s" help:"Time between two lists of --watch."`
	Count    int           `short:"n" help:"End --watch after so many lists."`
	JSON     bool          `help:"Print JSON, with --watch one line for each list."`
}

func (c *Counters) Help() string {
	return `Shows the counters of ports, for devices of every driver: those of the InfiniBand
specification, and those of the driver, marked with *. The mark + means that a counter has
stopped at its largest value.

Examples:

  verbs counters
  verbs counters mlx5_0 --watch
  verbs counters --json --watch --interval 10s`
}

func (c *Counters) Run(ctx context.Context) error { return c.print(ctx, os.Stdout) }

// counterKey identifies a counter.
type counterKey struct {
	Device   string `json:"device"`
	Port     int    `json:"port"`
	Name     string `json:"name"`
	Hardware bool   `json:"hardware"`
}

type counterLine struct {
	counterKey
	Value     uint64       `json:"value"`
	Unit      rdmadev.Unit `json:"unit,omitempty"`
	Saturated bool         `json:"saturated,omitempty"`
	Rate      *float64     `json:"per_second,omitempty"`

	counter rdmadev.Counter
}

func (c *Counters) print(ctx context.Context, w io.Writer) error {
	var before map[counterKey]rdmadev.Counter
	var last time.Time
	for n := 0; ; n++ {
		now := time.Now()
		lines, err := c.read(w)
		if err != nil {
			return err
		}
		if !c.Watch {
			return c.list(w, lines)
		}
		values := map[counterKey]rdmadev.Counter{}
		for _, l := range lines {
			values[l.counterKey] = l.counter
		}
		if before != nil {
			if err := c.list(w, c.rates(lines, before, now.Sub(last))); err != nil {
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

// read reads the counters: those that are 0, too, with --all, or to be watched.
func (c *Counters) read(w io.Writer) (lines []counterLine, err error) {
	devs, err := devices(w, c.JSON && !c.Watch, c.Device)
	for _, d := range devs {
		for _, p := range d.Ports {
			list, err := p.Counters()
			if err != nil {
				cli.Warn(os.Stderr, err)
			}
			for _, v := range list {
				if c.All || c.Watch || v.Value != 0 {
					lines = append(lines, counterLine{
						counterKey: counterKey{d.Name, p.Num, v.Name, v.Hardware}, counter: v,
						Value: v.Value, Unit: v.Unit, Saturated: v.Max != 0 && v.Value == v.Max,
					})
				}
			}
		}
	}
	return lines, err
}

// rates adds the rates to lines, and removes those that do not change.
func (c *Counters) rates(lines []counterLine, before map[counterKey]rdmadev.Counter, elapsed time.Duration) []counterLine {
	changed := []counterLine{}
	for _, l := range lines {
		old, ok := before[l.counterKey]
		grown, _ := l.counter.Since(old)
		if !ok || grown == 0 && !c.All {
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
