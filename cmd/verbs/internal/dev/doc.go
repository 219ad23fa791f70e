// Package dev holds the commands of verbs that show and change RDMA devices of any driver
// without opening them: devices, ports, counters, res, stat, link and monitor.
package dev

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/goverbs/verbs/rdmadev"
)

// devices returns the device with a name, or all if it is empty.
func devices(name string) ([]rdmadev.Device, error) {
	if name == "" {
		return rdmadev.Devices()
	}
	d, err := rdmadev.Find(name)
	return []rdmadev.Device{d}, err
}

// oneLine returns the text of errors in one line, or "" if there are none.
func oneLine(errs []error) string {
	err := errors.Join(errs...)
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}

// table prints rows in columns. Empty fields are printed as "-".
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer, header ...string) *table {
	t := &table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	fmt.Fprintln(t.w, strings.Join(header, "\t"))
	return t
}

func (t *table) row(fields ...any) {
	for i, f := range fields {
		if i > 0 {
			fmt.Fprint(t.w, "\t")
		}
		fmt.Fprint(t.w, cmp.Or(strings.TrimSpace(fmt.Sprint(f)), "-"))
	}
	fmt.Fprintln(t.w)
}

func (t *table) flush() error { return t.w.Flush() }
