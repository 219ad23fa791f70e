package exporter

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/rdmadev"
)

// DeviceOptions contains options for [NewDeviceCollector].
type DeviceOptions struct {
	// Source is where the devices are read from. The zero value is this machine.
	Source rdmadev.Source
	// Processes adds the QPs and MRs of each process, and the states of QPs.
	Processes bool
	// Timeout bounds the time that reading takes. Zero means 8 s, less than Prometheus waits.
	// A driver may keep the reader of a file for ever, for example if its firmware does not
	// answer. The metrics of its device are missing then, and those of others are not.
	Timeout time.Duration
	// Logger gets what cannot be read, when it could be read in the scrape before; nil logs nothing.
	Logger *slog.Logger
}

// NewDeviceCollector returns a collector of the states, counters and resources of RDMA devices.
// It needs no device node and no privilege. A device, file or counter that cannot be read is left
// out, does not hide others, and is counted in rdma_read_failures.
func NewDeviceCollector(o DeviceOptions) prometheus.Collector {
	r := reader{o}
	logger := cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	return &devices{logger: logger, timeout: cmp.Or(o.Timeout, 8*time.Second), machine: r.machine, device: r.device, busy: map[string]*reading{}}
}

// devices is the collector. It reads what was found on the machine, and each device, in goroutines
// of their own: one at a time for each, however many scrapes wait for it, so that a file that
// keeps its reader keeps one goroutine.
type devices struct {
	timeout time.Duration
	logger  *slog.Logger
	machine func() (*readings, []string) // and the names of devices
	device  func(name string) *readings

	mu     sync.Mutex
	busy   map[string]*reading // by the name of the device; "" is the machine
	failed map[string]bool     // in the last scrape
}

// reading is one in progress.
type reading struct {
	begin  time.Time
	done   chan struct{} // closed when the rest is there
	took   time.Duration
	result *readings
	names  []string
}

// readings has samples, and counts what could not be read.
type readings struct {
	samples  []sample
	failures []error
}

// sample is the value of a series.
type sample struct {
	name, help string
	typ        prometheus.ValueType
	value      float64
	labels     []string // pairs of a name and a value
}

const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue

func (r *readings) add(name string, typ prometheus.ValueType, help string, value float64, labels ...string) {
	r.samples = append(r.samples, sample{name, help, typ, value, labels})
}

// join adds other readings, which other scrapes have, too.
func (r *readings) join(o *readings) {
	r.samples, r.failures = append(r.samples, o.samples...), append(r.failures, o.failures...)
}

// failed counts an error, which may be several.
func (r *readings) failed(err error) {
	var all interface{ Unwrap() []error }
	if errors.As(err, &all) {
		r.failures = append(r.failures, all.Unwrap()...)
	} else if err != nil {
		r.failures = append(r.failures, err)
	}
}

// Describe describes nothing: the drivers define the metrics.
func (c *devices) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (c *devices) Collect(out chan<- prometheus.Metric) {
	deadline := time.Now().Add(c.timeout)
	var all readings
	var names []string
	late := func(what string) error { return fmt.Errorf("%s was not read within %v", what, c.timeout) }
	if machine := c.start(""); machine.wait(deadline, c.timeout) {
		names = machine.names
		all.join(machine.result)
	} else {
		all.failed(late("the list of devices"))
	}
	running := map[string]*reading{}
	for _, name := range names {
		running[name] = c.start(name)
	}
	for _, name := range names {
		r := running[name]
		up, took := 1.0, time.Duration(0)
		if r.wait(deadline, c.timeout) {
			took = r.took
			all.join(r.result)
		} else {
			up, took = 0, time.Since(r.begin)
			all.failed(late(name))
		}
		all.add("rdma_scrape_device_success", gauge, "1 if the device was read in time.", up, "device", name)
		all.add("rdma_scrape_device_duration_seconds", gauge, "How long reading the device takes, or has taken so far.", took.Seconds(), "device", name)
	}
	all.send(out)
	c.log(all.failures)
}

// log logs the failures of a scrape that the one before did not have.
func (c *devices) log(failures []error) {
	now := map[string]bool{}
	for _, err := range failures {
		now[err.Error()] = true
	}
	c.mu.Lock()
	before := c.failed
	c.failed = now
	c.mu.Unlock()
	for _, text := range slices.Sorted(maps.Keys(now)) {
		if !before[text] {
			c.logger.Warn("not read", "err", text)
		}
	}
}

// start returns the reading in progress of a device, or else starts one.
func (c *devices) start(name string) *reading {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.busy[name]
	if r != nil {
		return r
	}
	r = &reading{begin: time.Now(), done: make(chan struct{})}
	c.busy[name] = r
	go func() {
		if name == "" {
			r.result, r.names = c.machine()
		} else {
			r.result = c.device(name)
		}
		r.took = time.Since(r.begin)
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.busy, name)
		close(r.done)
	}()
	return r
}

// wait reports whether the reading is done before the deadline. It does not wait for one that an
// earlier scrape has waited for in vain.
func (r *reading) wait(deadline time.Time, timeout time.Duration) bool {
	if end := r.begin.Add(timeout); end.Before(deadline) {
		deadline = end
	}
	late := time.NewTimer(time.Until(deadline))
	defer late.Stop()
	select {
	case <-r.done:
	case <-late.C:
	}
	select {
	case <-r.done: // also if it is past the deadline, while another one was waited for
		return true
	default:
		return false
	}
}

// send sends the samples. A registry refuses all metrics if a series occurs twice, a label is not
// UTF-8, as names of processes and of counters need not be, or a metric has several descriptions,
// as those of two counters whose names differ in what a metric's name cannot contain.
func (r *readings) send(out chan<- prometheus.Metric) {
	descs, seen := map[string]*prometheus.Desc{}, map[string]bool{}
	send := func(s sample) {
		var names, values []string
		for i := 0; i < len(s.labels); i += 2 {
			names, values = append(names, s.labels[i]), append(values, strings.ToValidUTF8(s.labels[i+1], "\ufffd"))
		}
		series := strings.Join(append([]string{s.name}, values...), "\xff")
		if seen[series] {
			r.failed(fmt.Errorf("%s %q: two have this name", s.name, values))
			return
		}
		seen[series] = true
		if descs[s.name] == nil {
			descs[s.name] = prometheus.NewDesc(s.name, strings.ToValidUTF8(s.help, "\ufffd"), names, nil)
		}
		m, err := prometheus.NewConstMetric(descs[s.name], s.typ, s.value, values...)
		if err != nil {
			r.failed(fmt.Errorf("%s %q: %w", s.name, values, err))
			return
		}
		out <- m
	}
	for _, s := range r.samples {
		send(s)
	}
	send(sample{name: "rdma_read_failures", typ: gauge, value: float64(len(r.failures)),
		help: "Attributes and counters that could not be read in this scrape, or have the name of another."})
}

// reader reads devices.
type reader struct{ DeviceOptions }

// machine returns whether this process sees anything at all, which no device's metric tells where
// there are none, and the names of the devices.
func (o reader) machine() (*readings, []string) {
	r := &readings{}
	names := map[string]bool{}
	list := o.Source
	list.Filter = func(name string) bool { // reads nothing of them
		names[name] = o.Source.Filter == nil || o.Source.Filter(name)
		return false
	}
	_, err := list.Devices()
	r.failed(err)
	maps.DeleteFunc(names, func(_ string, selected bool) bool { return !selected })
	up := func(err error) float64 {
		if err != nil {
			return 0
		}
		return 1
	}
	_, err = os.Stat(filepath.Join(cmp.Or(o.Source.Sys, "/sys"), "class"))
	r.add("rdma_devices", gauge, "RDMA devices that were found, and are not excluded.", float64(len(names)))
	r.add("rdma_sysfs_up", gauge, "1 if sysfs is mounted, from which devices and counters are read.", up(err))
	if o.Source.Sys == "" {
		_, err := rdmadev.ReadSystem()
		r.add("rdma_netlink_up", gauge, "1 if the kernel answers to RDMA's netlink, from which resources are read; 0 if ib_core is not loaded.", up(err))
	}
	return r, slices.Sorted(maps.Keys(names))
}

// node_exporter has the metrics whose names begin with node_infiniband_.
const node = "node_infiniband_"

// device reads a device.
func (o reader) device(name string) *readings {
	r := &readings{}
	d, err := o.Source.Find(name)
	if err != nil {
		if !errors.Is(err, verbs.ErrNoDevice) { // it was removed meanwhile
			r.failed(err)
		}
		return r
	}
	r.failures = append(r.failures, d.Errs...)
	r.add(node+"info", gauge, "Non-numeric data of the device; always 1.", 1,
		"device", d.Name, "board_id", d.Board, "firmware_version", d.Firmware, "hca_type", d.Model)
	r.add("rdma_device_info", gauge, "More data of the device; always 1.", 1,
		"device", d.Name, "driver", d.Driver, "protocol", string(d.Protocol), "pci", d.PCI.Addr, "numa_node", strconv.Itoa(d.NUMANode))
	for _, p := range d.Ports {
		r.failures = append(r.failures, p.Errs...)
		r.port(d.Name, p)
	}
	if d.Index >= 0 {
		r.resources(d)
		if o.Processes {
			r.processes(d)
		}
	}
	return r
}

// port adds the metrics of a port.
func (r *readings) port(device string, p rdmadev.Port) {
	labels := []string{"device", device, "port", strconv.Itoa(p.Num)}
	r.add(node+"state_id", gauge, "State of the port: 1 down, 2 init, 3 armed, 4 active.", float64(p.State), labels...)
	r.add(node+"physical_state_id", gauge, "Physical state of the port: 1 sleep, 2 polling, 3 disabled, 4 training, 5 link up, 6 link error recovery.", float64(p.PhysState), labels...)
	r.add(node+"rate_bytes_per_second", gauge, "Rate of the link; of a port that is down, the driver's constant.", float64(p.Rate)*1e6/8, labels...)
	for _, name := range p.Interfaces {
		r.add("rdma_port_netdev_info", gauge, "A network interface of the port; always 1.", 1, append(labels[:len(labels):len(labels)], "netdev", name)...)
	}
	counters, err := p.Counters()
	r.failed(err)
	for _, c := range counters {
		known, prefix, help := names[c.Name], "rdma_port_", "Counter "+c.Name+" of the port (InfiniBand specification, PortCounters)."
		if c.Hardware {
			known, prefix, help = hwNames[c.Name], "rdma_hw_", "Counter "+c.Name+" of the driver."
		}
		name := node + known
		typ := counter
		if known == "" {
			name = prefix + notInName.ReplaceAllString(c.Name, "_")
			if falls.MatchString(c.Name) {
				typ = gauge
			} else {
				name += "_total"
			}
		}
		r.add(name, typ, help, float64(c.Value), labels...)
	}
}

// notInName matches characters that a metric's name may not contain: some drivers' counters have
// spaces.
var notInName = regexp.MustCompile(`[^a-zA-Z0-9_]`)

// falls matches the counters of bnxt_re that fall, too, and their highest values, and mana's rate.
var falls = regexp.MustCompile(`^(active_|watermark_|current_rate$)`)

// resources adds the numbers of resources.
func (r *readings) resources(d rdmadev.Device) {
	n, err := d.Counts()
	if err != nil {
		r.failed(err)
		return
	}
	for kind, v := range map[string]int{"pd": n.PD, "cq": n.CQ, "qp": n.QP, "cm_id": n.CMID, "mr": n.MR, "ctx": n.Context, "srq": n.SRQ} {
		r.add("rdma_resources", gauge, "Resources of the device, of all processes and of the kernel.", float64(v), "device", d.Name, "kind", kind)
	}
}

// processes adds the resources of each process.
func (r *readings) processes(d rdmadev.Device) {
	type owner struct{ pid, comm string }
	of := func(o rdmadev.Owner) owner {
		if o.Kernel != "" {
			o.Comm = "[" + o.Kernel + "]"
		}
		return owner{strconv.Itoa(o.PID), strings.ToValidUTF8(o.Comm, "\ufffd")} // two may look the same
	}
	qps, err := d.QPs()
	r.failed(err)
	mrs, err := d.MRs()
	r.failed(err)
	count := map[string]map[owner]int{"qp": {}, "mr": {}}
	states, registered := map[verbs.QPState]int{}, map[owner]uint64{}
	for _, q := range qps {
		count["qp"][of(q.Owner)]++
		states[q.State]++
	}
	for _, m := range mrs {
		count["mr"][of(m.Owner)]++
		registered[of(m.Owner)] += m.Length
	}
	for kind, owners := range count {
		for o, n := range owners {
			r.add("rdma_process_resources", gauge, "Resources of the device that a process has.", float64(n),
				"device", d.Name, "kind", kind, "pid", o.pid, "comm", o.comm)
		}
	}
	for o, n := range registered {
		r.add("rdma_process_mr_bytes", gauge, "Memory that a process has registered.", float64(n), "device", d.Name, "pid", o.pid, "comm", o.comm)
	}
	for s, n := range states {
		r.add("rdma_qp_states", gauge, "QPs of the device by state.", float64(n), "device", d.Name, "state", s.String())
	}
}
