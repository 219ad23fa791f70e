// Package samples reads the file of a long run, lines of JSON: the first describes the run,
// then every few seconds a sample of both processes and the kernel, and the last describes
// the end. A run that was killed lacks the last.
package samples

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Line is a line of a file. One field is set.
type Line struct {
	Start  *Start  `json:"start,omitempty"`
	Sample *Sample `json:"sample,omitempty"`
	End    *End    `json:"end,omitempty"`
}

// Start describes a run.
type Start struct {
	Device   string        `json:"device"`
	About    string        `json:"about,omitempty"` // what runs, if not all layers on one device
	Kernel   string        `json:"kernel"`
	Go       string        `json:"go"`
	CPUs     int           `json:"cpus"`
	Began    time.Time     `json:"began"`
	Duration time.Duration `json:"duration"` // requested, in ns
	Every    time.Duration `json:"every"`    // between samples, in ns
	Stall    time.Duration `json:"stall"`    // how long a layer may make no progress, in ns
	Seed     uint64        `json:"seed"`
	Layers   []string      `json:"layers"`
}

// Sample is the state at a point in time.
type Sample struct {
	At        float64            `json:"at"` // seconds since the start
	Layers    map[string]Layer   `json:"layers"`
	Processes map[string]Process `json:"processes"`
	Kernel    map[string]int     `json:"kernel"`   // objects of the device, and KiB of memory
	Counters  map[string]uint64  `json:"counters"` // of the device's port
}

// Layer holds what a layer has done since the start.
type Layer struct {
	Rounds      uint64  `json:"rounds"`
	Bytes       uint64  `json:"bytes"`
	Connections uint64  `json:"connections"` // that have ended without an error
	Rest        float64 `json:"rest"`        // longest time without any progress, in seconds
}

// Process holds the resources of a process.
type Process struct {
	RSS        int `json:"rss"`    // KiB
	Pinned     int `json:"pinned"` // KiB
	Heap       int `json:"heap"`   // KiB in use by Go
	Files      int `json:"files"`
	Maps       int `json:"maps"`
	Goroutines int `json:"goroutines"`
	Threads    int `json:"threads"`
}

// End describes the end of a run.
type End struct {
	At       float64  `json:"at"`
	Failures []string `json:"failures"` // of the load
	Leaks    []string `json:"leaks"`    // what was left after all was closed
	Faults   []Fault  `json:"faults,omitempty"`
	Packets  int      `json:"packets,omitempty"` // through these faults, both ways
	Dropped  int      `json:"dropped,omitempty"` // of those
}

// Fault is what a network did to packets.
type Fault struct {
	Name    string  `json:"name"`
	Times   int     `json:"times"`
	Seconds float64 `json:"seconds"`
}

// Run is the content of a file.
type Run struct {
	Start   Start
	Samples []Sample
	End     *End // nil if it was killed
}

// Read reads a file. The last line of a run that was killed may be cut.
func Read(r io.Reader) (*Run, error) {
	var run Run
	started := false
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 64<<20)
	for n := 1; lines.Scan(); n++ {
		var l Line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			if !lines.Scan() && started {
				break
			}
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		switch {
		case l.Start != nil:
			run.Start, started = *l.Start, true
		case l.Sample != nil:
			run.Samples = append(run.Samples, *l.Sample)
		case l.End != nil:
			run.End = l.End
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if !started {
		return nil, errors.New("it does not say what was run")
	}
	return &run, nil
}

// Took returns how long the run took, as far as it is known.
func (r *Run) Took() time.Duration {
	at := 0.0
	if n := len(r.Samples); n > 0 {
		at = r.Samples[n-1].At
	}
	if r.End != nil {
		at = r.End.At
	}
	return time.Duration(at * float64(time.Second)).Round(time.Second)
}

// Last returns the last sample, or nil if there is none.
func (r *Run) Last() *Sample {
	if len(r.Samples) == 0 {
		return nil
	}
	return &r.Samples[len(r.Samples)-1]
}
