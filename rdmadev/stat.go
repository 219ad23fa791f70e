package rdmadev

import (
	"errors"
	"fmt"
	"slices"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/nldev"
)

// QPCounter is a set of hardware counters that counts for some QPs of a port only
// (rdma-statistic(8)). Few drivers have them, among these mlx5.
type QPCounter struct {
	Owner    // of the QPs, if they were bound by process
	Num      uint32
	Port     int
	Mode     CounterMode
	QPs      []uint32 // numbers
	Counters []Counter
}

// CounterMode is how QPs are bound to counters.
type CounterMode struct {
	Kind   CounterKind
	ByType bool         // automatically: a set for each type of QP
	ByPID  bool         // automatically: a set for each process
	Type   verbs.QPType // of a set's QPs, if ByType
}

// CounterKind is a way to bind QPs to counters (enum rdma_nl_counter_mode).
type CounterKind uint8

const (
	CounterNone   CounterKind = iota // all QPs of a port use its own counters
	CounterAuto                      // the kernel binds each new QP
	CounterManual                    // BindCounter does
)

func (k CounterKind) String() string { return nameOf([]string{"none", "auto", "manual"}, uint64(k)) }

// OptionalCounter is a hardware counter of a port that can be switched off.
type OptionalCounter struct {
	Name  string
	On    bool
	index uint32
}

// HardwareCounters returns the driver's counters of a port, from netlink. It leaves out optional
// counters that are off, and includes the counts of QPs that are bound to other counters. For some
// drivers (mlx5) sysfs has more, see [Port.Counters].
func (d Device) HardwareCounters(port int) ([]Counter, error) {
	answer, err := d.do(abi.RDMA_NLDEV_CMD_STAT_GET, portAttr(port))
	if err == errors.ErrUnsupported { // the device has no netlink
		if i := slices.IndexFunc(d.Ports, func(p Port) bool { return p.Num == port }); i >= 0 {
			a := attrs{dir: d.Ports[i].dir}
			return a.counters("hw_counters", true), a.error("hardware counters", d.Ports[i])
		}
		err = verbs.ErrRange
	}
	if err != nil {
		return nil, d.error("read", fmt.Sprintf("hardware counters of port %d", port), err)
	}
	return hwCounters(answer.Map()[abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTERS]), nil
}

func hwCounters(table nldev.Value) (list []Counter) {
	for _, e := range table.Attrs().All() {
		m := e.Attrs().Map()
		list = append(list, newCounter(m[abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME].String(), m[abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE].Uint(), true))
	}
	return list
}

func portAttr(port int) nldev.Attrs {
	return nldev.Attrs{}.Uint32(abi.RDMA_NLDEV_ATTR_PORT_INDEX, uint32(port))
}

// QPCounters returns the sets of counters to which QPs are bound.
func (d Device) QPCounters() ([]QPCounter, error) {
	return list(d, "QP counters", abi.RDMA_NLDEV_CMD_STAT_GET, abi.RDMA_NLDEV_ATTR_STAT_COUNTER, statResource(abi.RDMA_NLDEV_ATTR_RES_QP), func(e entry) QPCounter {
		c := QPCounter{
			Owner: e.owner(), Num: e.uint32(abi.RDMA_NLDEV_ATTR_STAT_COUNTER_ID), Port: e.int(abi.RDMA_NLDEV_ATTR_PORT_INDEX),
			Mode: CounterMode{
				Kind: CounterKind(e.int(abi.RDMA_NLDEV_ATTR_STAT_MODE)), Type: verbs.QPType(e.uint32(abi.RDMA_NLDEV_ATTR_RES_TYPE)),
			},
			Counters: hwCounters(e[abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTERS]),
		}
		_, c.Mode.ByType = e[abi.RDMA_NLDEV_ATTR_RES_TYPE]
		_, pid := e[abi.RDMA_NLDEV_ATTR_RES_PID]
		_, kernel := e[abi.RDMA_NLDEV_ATTR_RES_KERN_NAME]
		c.Mode.ByPID = pid || kernel
		for _, qp := range e[abi.RDMA_NLDEV_ATTR_RES_QP].Attrs().All() {
			c.QPs = append(c.QPs, entry(qp.Attrs().Map()).uint32(abi.RDMA_NLDEV_ATTR_RES_LQPN))
		}
		return c
	})
}

// MRCounters holds the counters of a memory region, such as its page faults with on-demand paging.
type MRCounters struct {
	Num      uint32
	Counters []Counter
}

// MRCounters returns the counters of the memory regions that have any.
func (d Device) MRCounters() (found []MRCounters, err error) {
	all, err := list(d, "MR counters", abi.RDMA_NLDEV_CMD_STAT_GET, abi.RDMA_NLDEV_ATTR_RES_MR, statResource(abi.RDMA_NLDEV_ATTR_RES_MR), func(e entry) MRCounters {
		return MRCounters{e.uint32(abi.RDMA_NLDEV_ATTR_RES_MRN), hwCounters(e[abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTERS])}
	})
	for _, m := range all {
		if m.Counters != nil {
			found = append(found, m)
		}
	}
	return found, err
}

func statResource(resource int) nldev.Attrs {
	return nldev.Attrs{}.Uint32(abi.RDMA_NLDEV_ATTR_STAT_RES, uint32(resource))
}

// CounterMode returns how QPs of a port are bound to counters.
func (d Device) CounterMode(port int) (CounterMode, error) {
	attrs := append(portAttr(port), statResource(abi.RDMA_NLDEV_ATTR_RES_QP)...)
	answer, err := d.do(abi.RDMA_NLDEV_CMD_STAT_GET, attrs.Uint32(abi.RDMA_NLDEV_ATTR_STAT_MODE, 0))
	if err != nil {
		return CounterMode{}, d.error("read", fmt.Sprintf("counter mode of port %d", port), err)
	}
	m := entry(answer.Map())
	mask := m.int(abi.RDMA_NLDEV_ATTR_STAT_AUTO_MODE_MASK)
	return CounterMode{
		Kind:   CounterKind(m.int(abi.RDMA_NLDEV_ATTR_STAT_MODE)),
		ByType: mask&abi.RDMA_COUNTER_MASK_QP_TYPE != 0, ByPID: mask&abi.RDMA_COUNTER_MASK_PID != 0,
	}, nil
}

// SetCounterAuto makes the kernel bind each new QP of a port to a set of counters for its type, its
// process or both, or, with neither, to none. Bound QPs stay bound.
func (d Device) SetCounterAuto(port int, byType, byPID bool) error {
	var mask uint32
	if byType {
		mask |= abi.RDMA_COUNTER_MASK_QP_TYPE
	}
	if byPID {
		mask |= abi.RDMA_COUNTER_MASK_PID
	}
	attrs := append(portAttr(port), statResource(abi.RDMA_NLDEV_ATTR_RES_QP)...).
		Uint32(abi.RDMA_NLDEV_ATTR_STAT_MODE, abi.RDMA_COUNTER_MODE_AUTO).
		Uint32(abi.RDMA_NLDEV_ATTR_STAT_AUTO_MODE_MASK, mask)
	return d.change("set", fmt.Sprintf("counter mode of port %d", port), abi.RDMA_NLDEV_CMD_STAT_SET, attrs)
}

// BindCounter binds a QP to a set of counters, or to a new one if counter is 0, and returns
// the set's number.
func (d Device) BindCounter(port int, qp, counter uint32) (uint32, error) {
	attrs := append(portAttr(port), statResource(abi.RDMA_NLDEV_ATTR_RES_QP)...).
		Uint32(abi.RDMA_NLDEV_ATTR_STAT_MODE, abi.RDMA_COUNTER_MODE_MANUAL).
		Uint32(abi.RDMA_NLDEV_ATTR_RES_LQPN, qp)
	if counter != 0 {
		attrs = attrs.Uint32(abi.RDMA_NLDEV_ATTR_STAT_COUNTER_ID, counter)
	}
	answer, err := d.do(abi.RDMA_NLDEV_CMD_STAT_SET, attrs)
	if err != nil {
		return 0, d.error("bind counter to", fmt.Sprintf("QP %d", qp), err)
	}
	return entry(answer.Map()).uint32(abi.RDMA_NLDEV_ATTR_STAT_COUNTER_ID), nil
}

// UnbindCounter unbinds a QP from a set of counters: the counters of its port count for it again.
func (d Device) UnbindCounter(port int, qp, counter uint32) error {
	attrs := append(portAttr(port), statResource(abi.RDMA_NLDEV_ATTR_RES_QP)...).
		Uint32(abi.RDMA_NLDEV_ATTR_STAT_COUNTER_ID, counter).
		Uint32(abi.RDMA_NLDEV_ATTR_RES_LQPN, qp)
	return d.change("unbind counter from", fmt.Sprintf("QP %d", qp), abi.RDMA_NLDEV_CMD_STAT_DEL, attrs)
}

// OptionalCounters returns the hardware counters of a port that can be switched on and off.
func (d Device) OptionalCounters(port int) (list []OptionalCounter, err error) {
	answer, err := d.do(abi.RDMA_NLDEV_CMD_STAT_GET_STATUS, portAttr(port))
	if err != nil {
		return nil, d.error("list", fmt.Sprintf("optional counters of port %d", port), err)
	}
	for _, e := range answer.Map()[abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTERS].Attrs().All() {
		m := entry(e.Attrs().Map())
		if on, ok := m[abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_DYNAMIC]; ok {
			list = append(list, OptionalCounter{
				Name: m[abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME].String(), On: on.Uint() != 0,
				index: m.uint32(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_INDEX),
			})
		}
	}
	return list, nil
}

// SetOptionalCounters switches on the named optional counters of a port, and all others off.
func (d Device) SetOptionalCounters(port int, on ...string) error {
	all, err := d.OptionalCounters(port)
	if err != nil {
		return err
	}
	var indices nldev.Attrs
	for _, name := range on {
		i := slices.IndexFunc(all, func(c OptionalCounter) bool { return c.Name == name })
		if i < 0 {
			return d.error("switch on", fmt.Sprintf("counter %q of port %d", name, port), verbs.ErrRange)
		}
		indices = indices.Uint32(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_INDEX, all[i].index)
	}
	attrs := portAttr(port).Nested(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTERS, indices)
	return d.change("set", fmt.Sprintf("optional counters of port %d", port), abi.RDMA_NLDEV_CMD_STAT_SET, attrs)
}
