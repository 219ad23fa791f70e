package dev

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/rdmadev"
)

// Res is verbs res, for kong.
type Res struct {
	Kind   string `arg:"" optional:"" enum:"all,qp,cq,mr,pd,srq,cm_id,ctx" default:"all" help:"What to list: qp, cq, mr, pd, srq, cm_id or ctx; by default the number of each."`
	Device string `short:"d" placeholder:"DEVICE" help:"Name of a device; all by default."`
	PID    int    `name:"pid" help:"Only resources of this process."`
	JSON   bool   `help:"Print JSON."`
}

func (c *Res) Help() string {
	return `Shows the resources of devices of every driver, like "rdma resource": those of all
processes of this PID namespace, and the kernel's own. MRs' keys require
CAP_NET_ADMIN.

Examples:

  verbs res
  verbs res qp -d mlx5_0
  verbs res mr --pid 4711 --json`
}

func (c *Res) Run(context.Context) error { return c.print(os.Stdout) }

// resource is a row: a resource of a device, and the values of the columns of its kind.
type resource struct {
	device string
	owner  rdmadev.Owner
	cells  []any
}

// object returns the row as a JSON object, with the names of the columns in lower case.
func (r resource) object(header []string) map[string]any {
	object := map[string]any{"device": r.device}
	for i, c := range r.cells {
		if s, ok := c.(fmt.Stringer); ok {
			c = s.String()
		}
		if c != "" {
			object[strings.ToLower(header[i])] = c
		}
	}
	if r.owner.Kernel != "" {
		object["kernel"] = r.owner.Kernel
	} else {
		object["pid"], object["comm"] = r.owner.PID, r.owner.Comm
	}
	return object
}

func (c *Res) print(w io.Writer) error {
	devs, err := devices(w, c.JSON, c.Device)
	if err != nil {
		return err
	}
	if c.Kind == "all" {
		return c.counts(w, devs)
	}
	var header []string
	var rows []resource
	var errs []error
	for _, d := range devs {
		h, list, err := resources(d, c.Kind)
		header = h
		if err != nil {
			errs = append(errs, err)
		}
		for _, r := range list {
			if c.PID == 0 || c.PID == r.owner.PID {
				rows = append(rows, r)
			}
		}
	}
	if len(errs) == len(devs) { // there is no list
		return errors.Join(errs...)
	}
	return cmp.Or(c.list(w, header, rows), errors.Join(errs...))
}

// list prints resources of a kind.
func (c *Res) list(w io.Writer, header []string, rows []resource) error {
	if c.JSON {
		objects := []map[string]any{}
		for _, r := range rows {
			objects = append(objects, r.object(header))
		}
		return cli.WriteJSON(w, objects)
	}
	t := cli.NewTable(w, append(append([]string{"DEVICE"}, header...), "PID", "OWNER")...)
	for _, r := range rows {
		pid, name := any(""), r.owner.Comm
		if r.owner.PID != 0 {
			pid = r.owner.PID
		}
		if r.owner.Kernel != "" {
			name = "[" + r.owner.Kernel + "]"
		}
		t.Row(append(append([]any{r.device}, r.cells...), pid, name)...)
	}
	return t.Flush()
}

// count returns the numbers of a device's resources, of all processes or of one.
func (c *Res) count(d rdmadev.Device) (n rdmadev.Counts, err error) {
	if c.PID == 0 {
		return d.Counts()
	}
	for kind, field := range map[string]*int{"pd": &n.PD, "cq": &n.CQ, "qp": &n.QP, "cm_id": &n.CMID, "mr": &n.MR, "ctx": &n.Context, "srq": &n.SRQ} {
		_, list, err := resources(d, kind)
		if err != nil {
			return n, err
		}
		for _, r := range list {
			if r.owner.PID == c.PID {
				*field++
			}
		}
	}
	return n, nil
}

// counts prints the numbers of resources.
func (c *Res) counts(w io.Writer, devs []rdmadev.Device) error {
	type line struct {
		Device string `json:"device"`
		rdmadev.Counts
	}
	var lines []line
	var errs []error
	for _, d := range devs {
		n, err := c.count(d)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		lines = append(lines, line{d.Name, n})
	}
	if len(errs) == len(devs) {
		return errors.Join(errs...)
	}
	err := cli.List(w, c.JSON, lines, []string{"DEVICE", "PD", "CQ", "QP", "CM_ID", "MR", "CTX", "SRQ"}, func(l line) []any {
		return []any{l.Device, l.PD, l.CQ, l.QP, l.CMID, l.MR, l.Context, l.SRQ}
	})
	return cmp.Or(err, errors.Join(errs...))
}

// resources lists the resources of a kind.
func resources(d rdmadev.Device, kind string) (header []string, list []resource, err error) {
	number := func(n uint32) any {
		if n == 0 {
			return ""
		}
		return n
	}
	addr := func(a netip.AddrPort) string {
		if !a.IsValid() {
			return ""
		}
		return a.String()
	}
	switch kind {
	case "qp":
		return rows(d, d.QPs, func(r rdmadev.QP) (rdmadev.Owner, []any) {
			return r.Owner, []any{r.Num, r.Port, r.Type, r.State, number(r.RemoteNum), r.PD}
		}, "QP", "PORT", "TYPE", "STATE", "REMOTE", "PD")
	case "cq":
		return rows(d, d.CQs, func(r rdmadev.CQ) (rdmadev.Owner, []any) {
			return r.Owner, []any{r.Num, r.Depth, r.Users, r.PollContext, r.Context}
		}, "CQ", "DEPTH", "USERS", "POLLED", "CTX")
	case "mr":
		return rows(d, d.MRs, func(r rdmadev.MR) (rdmadev.Owner, []any) {
			return r.Owner, []any{r.Num, r.Length, fmt.Sprintf("%#x", r.LKey), fmt.Sprintf("%#x", r.RKey), r.PD}
		}, "MR", "BYTES", "LKEY", "RKEY", "PD")
	case "pd":
		return rows(d, d.PDs, func(r rdmadev.PD) (rdmadev.Owner, []any) {
			return r.Owner, []any{r.Num, r.Users, r.Context}
		}, "PD", "USERS", "CTX")
	case "srq":
		return rows(d, d.SRQs, func(r rdmadev.SRQ) (rdmadev.Owner, []any) {
			n := uint32(0)
			for _, q := range r.QPs {
				n += q.Last - q.First + 1
			}
			return r.Owner, []any{r.Num, r.Type, n, r.PD}
		}, "SRQ", "TYPE", "QPS", "PD")
	case "cm_id":
		return rows(d, d.CMIDs, func(r rdmadev.CMID) (rdmadev.Owner, []any) {
			return r.Owner, []any{r.Num, r.Port, number(r.QP), r.State, r.PortSpace, addr(r.Local), addr(r.Remote)}
		}, "CM_ID", "PORT", "QP", "STATE", "SPACE", "LOCAL", "REMOTE")
	}
	return rows(d, d.Contexts, func(r rdmadev.Context) (rdmadev.Owner, []any) { return r.Owner, []any{r.Num} }, "CTX")
}

// rows describes the resources of a list.
func rows[T any](d rdmadev.Device, list func() ([]T, error), describe func(T) (rdmadev.Owner, []any), header ...string) ([]string, []resource, error) {
	all, err := list()
	var rows []resource
	for _, r := range all {
		owner, cells := describe(r)
		rows = append(rows, resource{d.Name, owner, cells})
	}
	return header, rows, err
}
