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
	Kind   string `arg:"" optional:"" enum:"all,qp,cq,mr,pd,srq,cm_id,ctx" default:"all" help:"What to list: qp, cq, mr, pd, srq, cm_id or ctx. By default, the numbers of all are shown."`
	Device string `short:"d" placeholder:"DEVICE" help:"Name of a device; all by default."`
	PID    int    `name:"pid" help:"Only resources of this process."`
	JSON   bool   `help:"Print JSON."`
}

func (c *Res) Help() string {
	return `Shows the resources of devices of every driver: those of all processes that this PID
namespace has, and the kernel's own, as "rdma resource" does. MRs' keys require
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

// object returns the row as an object of JSON, whose names are those of the columns in lower case.
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
	rows := []resource{}
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

// counts prints the numbers of resources.
func (c *Res) counts(w io.Writer, devs []rdmadev.Device) error {
	type line struct {
		Device string `json:"device"`
		rdmadev.Counts
	}
	lines := []line{}
	var errs []error
	for _, d := range devs {
		n, err := d.Counts()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		lines = append(lines, line{d.Name, n})
	}
	if len(errs) == len(devs) {
		return errors.Join(errs...)
	}
	if c.JSON {
		return cmp.Or(cli.WriteJSON(w, lines), errors.Join(errs...))
	}
	t := cli.NewTable(w, "DEVICE", "PD", "CQ", "QP", "CM_ID", "MR", "CTX", "SRQ")
	for _, l := range lines {
		t.Row(l.Device, l.PD, l.CQ, l.QP, l.CMID, l.MR, l.Context, l.SRQ)
	}
	return cmp.Or(t.Flush(), errors.Join(errs...))
}

// resources lists the resources of a kind.
func resources(d rdmadev.Device, kind string) (header []string, rows []resource, err error) {
	add := func(o rdmadev.Owner, cells ...any) {
		rows = append(rows, resource{d.Name, o, cells})
	}
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
		header = []string{"QP", "PORT", "TYPE", "STATE", "REMOTE", "PD"}
		var list []rdmadev.QP
		list, err = d.QPs()
		for _, r := range list {
			add(r.Owner, r.Num, r.Port, r.Type, r.State, number(r.RemoteNum), r.PD)
		}
	case "cq":
		header = []string{"CQ", "DEPTH", "USERS", "POLLED", "CTX"}
		var list []rdmadev.CQ
		list, err = d.CQs()
		for _, r := range list {
			add(r.Owner, r.Num, r.Depth, r.Users, r.PollContext, r.Context)
		}
	case "mr":
		header = []string{"MR", "BYTES", "LKEY", "RKEY", "PD"}
		var list []rdmadev.MR
		list, err = d.MRs()
		for _, r := range list {
			add(r.Owner, r.Num, r.Length, fmt.Sprintf("%#x", r.LKey), fmt.Sprintf("%#x", r.RKey), r.PD)
		}
	case "pd":
		header = []string{"PD", "USERS", "CTX"}
		var list []rdmadev.PD
		list, err = d.PDs()
		for _, r := range list {
			add(r.Owner, r.Num, r.Users, r.Context)
		}
	case "srq":
		header = []string{"SRQ", "TYPE", "QPS", "PD"}
		var list []rdmadev.SRQ
		list, err = d.SRQs()
		for _, r := range list {
			n := uint32(0)
			for _, q := range r.QPs {
				n += q.Last - q.First + 1
			}
			add(r.Owner, r.Num, r.Type, n, r.PD)
		}
	case "cm_id":
		header = []string{"CM_ID", "PORT", "QP", "STATE", "SPACE", "LOCAL", "REMOTE"}
		var list []rdmadev.CMID
		list, err = d.CMIDs()
		for _, r := range list {
			add(r.Owner, r.Num, r.Port, number(r.QP), r.State, r.PortSpace, addr(r.Local), addr(r.Remote))
		}
	case "ctx":
		header = []string{"CTX"}
		var list []rdmadev.Context
		list, err = d.Contexts()
		for _, r := range list {
			add(r.Owner, r.Num)
		}
	}
	return header, rows, err
}
