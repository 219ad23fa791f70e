package perf

import (
	"fmt"
	"time"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
)

// document is the output of --json: the test, its time, settings, results and failed limits.
type document struct {
	cli.Build
	Start      time.Time          `json:"start"`
	Arguments  []string           `json:"arguments"`
	Parameters parameters         `json:"parameters"`
	Limits     map[string]float64 `json:"limits,omitempty"`
	Results    []*result          `json:"results"`
	Failed     []string           `json:"failed"` // limits that a result is worse than, and the error that ended the test
}

// parameters are the options of a test, also those that were not given.
type parameters struct {
	Op        string  `json:"op"`
	Mode      string  `json:"mode"`
	Size      int     `json:"size,omitempty"` // bytes; with --all each result has its own
	Iters     int     `json:"iterations,omitempty"`
	Duration  float64 `json:"duration_seconds,omitempty"`
	QPs       int     `json:"qps"`
	TxDepth   int     `json:"tx_depth"`
	RxDepth   int     `json:"rx_depth"`
	List      int     `json:"post_list"`
	CQMod     int     `json:"cq_mod"`
	Inline    int     `json:"inline"`
	Both      bool    `json:"bidirectional"`
	Events    bool    `json:"events"`
	TClass    uint8   `json:"tclass"`
	PKeyIndex *int    `json:"pkey_index,omitempty"`
	Timeout   float64 `json:"timeout_seconds"`
	Interval  float64 `json:"interval_seconds,omitempty"`
}

func newDocument(args []string, w work, all bool, period time.Duration, limits []limit) *document {
	d := &document{
		Build: cli.ThisBuild(), Start: time.Now(), Arguments: args, Limits: map[string]float64{},
		Results: []*result{}, Failed: []string{},
		Parameters: parameters{
			Op: w.Op, Mode: w.Mode, Size: w.Size, Iters: w.Iters, Duration: w.Duration.Seconds(),
			QPs: w.QPs, TxDepth: w.TxDepth, RxDepth: w.RxDepth, List: w.List, CQMod: w.CQMod, Inline: w.Inline,
			Both: w.Both, Events: w.Events, TClass: w.TClass, PKeyIndex: w.PKeyIndex, Timeout: w.Timeout.Seconds(), Interval: period.Seconds(),
		},
	}
	for _, l := range limits {
		if l.bound != 0 {
			d.Limits[l.name] = l.bound
		}
	}
	if all {
		d.Parameters.Size = 0
	}
	return d
}

// limit is a value of results that a health check accepts up to a bound, or from it on; 0 is no
// bound.
type limit struct {
	name  string // in JSON
	text  string // of the error
	bound float64
	least bool
	of    func(*result) float64
}

// failures returns an error for each result that is worse than a limit.
func failures(results []*result, limits []limit) (errs []error) {
	for _, r := range results {
		for _, l := range limits {
			if l.bound == 0 {
				continue
			}
			if v := l.of(r); v < l.bound && l.least || v > l.bound && !l.least {
				errs = append(errs, fmt.Errorf(l.text, v, l.bound))
			}
		}
	}
	return errs
}
