package exporter

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/rdmadev"
)

// metrics collects samples and writes them in Prometheus' text format
// (https://prometheus.io/docs/instrumenting/exposition_formats/).
type metrics map[string]*family

// family is a metric with all its samples.
type family struct {
	typ, help string
	samples   bytes.Buffer
}

// add adds a sample. labels are pairs of a name and a value.
func (m metrics) add(name, typ, help string, value float64, labels ...string) {
	f := m[name]
	if f == nil {
		f = &family{typ: typ, help: help}
		m[name] = f
	}
	f.samples.WriteString(name)
	for i := 0; i < len(labels); i += 2 {
		sep := ","
		if i == 0 {
			sep = "{"
		}
		fmt.Fprintf(&f.samples, `%s%s="%s"`, sep, labels[i], escape.Replace(labels[i+1]))
	}
	if len(labels) > 0 {
		f.samples.WriteString("}")
	}
	f.samples.WriteString(" " + strconv.FormatFloat(value, 'g', -1, 64) + "\n")
}

var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// write writes the metrics in the order of their names.
func (m metrics) write(w io.Writer) error {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		f := m[name]
		if _, err := fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n%s", name, f.help, name, f.typ, &f.samples); err != nil {
			return err
		}
	}
	return nil
}

// Names that begin with node_infiniband_ are those of node_exporter.
const node, own = "node_infiniband_", "rdma_"

// collect reads the devices. What cannot be read is missing, and counted.
func (c *Cmd) collect() metrics {
	m := metrics{}
	failures := 0
	devices, err := c.source().Devices()
	if err != nil {
		failures++
	}
	for _, d := range devices {
		failures += len(d.Errs)
		m.add(node+"info", "gauge", "Non-numeric data of the device; always 1.", 1,
			"device", d.Name, "board_id", d.Board, "firmware_version", d.Firmware, "hca_type", d.Model)
		m.add(own+"device_info", "gauge", "More data of the device; always 1.", 1,
			"device", d.Name, "driver", d.Driver, "protocol", string(d.Protocol), "pci", d.PCI.Addr, "numa_node", strconv.Itoa(d.NUMANode))
		for _, p := range d.Ports {
			failures += len(p.Errs) + m.port(d.Name, p)
		}
		if d.Index >= 0 {
			failures += c.resources(m, d)
		}
	}
	m.add(own+"read_failures", "gauge", "Attributes and counters that could not be read in this scrape.", float64(failures))
	return m
}

// port adds the metrics of a port, and returns the number of failures.
func (m metrics) port(device string, p rdmadev.Port) (failures int) {
	labels := []string{"device", device, "port", strconv.Itoa(p.Num)}
	m.add(node+"state_id", "gauge", "State of the port: 1 down, 2 init, 3 armed, 4 active.", float64(p.State), labels...)
	m.add(node+"physical_state_id", "gauge", "Physical state of the port: 1 sleep, 2 polling, 3 disabled, 4 training, 5 link up, 6 link error recovery.", float64(p.PhysState), labels...)
	m.add(node+"rate_bytes_per_second", "gauge", "Rate of the link; of a port that is down, the driver's constant.", float64(p.Rate)*1e6/8, labels...)
	counters, err := p.Counters()
	if err != nil {
		failures++
	}
	for _, c := range counters {
		name, help := node+names[c.Name], "Counter "+c.Name+" of the port (InfiniBand specification, PortCounters)."
		if c.Hardware {
			name, help = node+hwNames[c.Name], "Counter "+c.Name+" of the driver."
		}
		if name == node {
			name = own + "port_" + metricName(c.Name) + "_total"
			if c.Hardware {
				name = own + "hw_" + metricName(c.Name) + "_total"
			}
		}
		m.add(name, "counter", help, float64(c.Value), labels...)
	}
	return failures
}

// metricName replaces what a name may not contain: some drivers' counters have spaces.
func metricName(name string) string {
	return strings.Map(func(r rune) rune {
		if r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, name)
}

// resources adds the numbers of resources, and returns the number of failures.
func (c *Cmd) resources(m metrics, d rdmadev.Device) (failures int) {
	n, err := d.Counts()
	if err != nil {
		return 1
	}
	for kind, v := range map[string]int{"pd": n.PD, "cq": n.CQ, "qp": n.QP, "cm_id": n.CMID, "mr": n.MR, "ctx": n.Context, "srq": n.SRQ} {
		m.add(own+"resources", "gauge", "Resources of the device, of all processes and of the kernel.", float64(v), "device", d.Name, "kind", kind)
	}
	if !c.Processes {
		return 0
	}
	type owner struct{ pid, name string }
	count := func(kind string, owners []rdmadev.Owner, err error) {
		if err != nil {
			failures++
		}
		numbers := map[owner]int{}
		for _, o := range owners {
			if o.Kernel != "" {
				o.Comm = "[" + o.Kernel + "]"
			}
			numbers[owner{strconv.Itoa(o.PID), o.Comm}]++
		}
		for o, v := range numbers {
			m.add(own+"process_resources", "gauge", "Resources of the device that a process has.", float64(v),
				"device", d.Name, "kind", kind, "pid", o.pid, "comm", o.name)
		}
	}
	qps, err := d.QPs()
	count("qp", ownersOf(qps, func(q rdmadev.QP) rdmadev.Owner { return q.Owner }), err)
	mrs, err := d.MRs()
	count("mr", ownersOf(mrs, func(r rdmadev.MR) rdmadev.Owner { return r.Owner }), err)
	registered := map[owner]uint64{}
	for _, r := range mrs {
		registered[owner{strconv.Itoa(r.PID), r.Comm}] += r.Length
	}
	for o, v := range registered {
		m.add(own+"process_mr_bytes", "gauge", "Memory that a process has registered.", float64(v), "device", d.Name, "pid", o.pid, "comm", o.name)
	}
	states := map[verbs.QPState]int{}
	for _, q := range qps {
		states[q.State]++
	}
	for s, v := range states {
		m.add(own+"qp_states", "gauge", "QPs of the device by state.", float64(v), "device", d.Name, "state", s.String())
	}
	return failures
}

func ownersOf[T any](list []T, owner func(T) rdmadev.Owner) (owners []rdmadev.Owner) {
	for _, v := range list {
		owners = append(owners, owner(v))
	}
	return owners
}
