package rdmadev

import (
	"cmp"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/nldev"
)

// Owner is the thread, or the part of the kernel, that created a resource.
type Owner struct {
	TID    int    // of the thread, in this PID namespace; 0 if it has ended, is in another, or the kernel is the owner
	PID    int    // of the thread's process, if /proc has it
	Comm   string // name of the thread, if /proc has it
	Kernel string // name of the owning module or thread of the kernel: "ib_core", "nvme-rdma"
}

// QP is a queue pair.
type QP struct {
	Owner
	Num       uint32
	Port      int // 0 if the QP is not bound to a port yet
	PD        uint32
	Type      verbs.QPType
	State     verbs.QPState
	RemoteNum uint32 // of RC and UC
	RecvPSN   uint32 // of RC and UC
	SendPSN   uint32
}

// CQ is a completion queue.
type CQ struct {
	Owner
	Num                uint32
	Context            uint32 // 0 for the kernel's
	Depth              int
	Users              int    // QPs and SRQs that use it
	PollContext        string // how the kernel polls its own CQs: "direct", "softirq", "workqueue", "unbound workqueue"
	AdaptiveModeration bool
}

// MR is a memory region.
type MR struct {
	Owner
	Num        uint32
	PD         uint32
	Length     uint64 // bytes
	LKey, RKey uint32 // 0 without CAP_NET_ADMIN
}

// PD is a protection domain.
type PD struct {
	Owner
	Num              uint32
	Context          uint32
	Users            int    // objects that depend on it
	LocalDMALKey     uint32 // 0 without CAP_NET_ADMIN
	UnsafeGlobalRKey uint32 // of the kernel's domains that allow access to all memory
}

// CMID is an identifier of the connection manager.
type CMID struct {
	Owner
	Num       uint32
	Port      int    // 0 if it is not bound to a device's port
	QP        uint32 // 0 if it has none, or does not know it
	QPType    verbs.QPType
	PortSpace string // "TCP", "UDP", "IB", "IPOIB"
	State     string // "LISTEN", "CONNECT"
	Local     netip.AddrPort
	Remote    netip.AddrPort
}

// Context is an opened device.
type Context struct {
	Owner
	Num uint32
}

// SRQ is a shared receive queue.
type SRQ struct {
	Owner
	Num  uint32
	PD   uint32
	CQ   uint32 // of types that have one
	Type string // "BASIC", "XRC", "TM"
	QPs  []Range
}

// Range is a range of numbers of QPs.
type Range struct{ First, Last uint32 }

// Counts holds the numbers of a device's resources.
type Counts struct {
	PD      int `json:"pd"`
	CQ      int `json:"cq"`
	QP      int `json:"qp"`
	CMID    int `json:"cm_id"`
	MR      int `json:"mr"`
	Context int `json:"ctx"`
	SRQ     int `json:"srq"`
}

// Counts returns the numbers of the device's resources, of all processes. A device in user space
// and its resources belong to this process. The lists below are the same.
func (d Device) Counts() (Counts, error) {
	var gone error
	count := func(table int) int {
		objects, err := host.Objects(d.Index, table)
		gone = cmp.Or(gone, err)
		return len(objects)
	}
	all := Counts{
		PD: count(abi.RDMA_NLDEV_ATTR_RES_PD), CQ: count(abi.RDMA_NLDEV_ATTR_RES_CQ), QP: count(abi.RDMA_NLDEV_ATTR_RES_QP),
		CMID: count(abi.RDMA_NLDEV_ATTR_RES_CM_ID), MR: count(abi.RDMA_NLDEV_ATTR_RES_MR),
		Context: count(abi.RDMA_NLDEV_ATTR_RES_CTX), SRQ: count(abi.RDMA_NLDEV_ATTR_RES_SRQ),
	}
	switch {
	case gone == nil:
		return all, nil
	case gone != errors.ErrUnsupported:
		return Counts{}, d.error("count", "resources", gone)
	}
	answer, err := d.do(abi.RDMA_NLDEV_CMD_RES_GET, nil)
	if err != nil {
		return Counts{}, d.error("count", "resources", err)
	}
	var c Counts
	fields := map[string]*int{"pd": &c.PD, "cq": &c.CQ, "qp": &c.QP, "cm_id": &c.CMID, "mr": &c.MR, "ctx": &c.Context, "srq": &c.SRQ}
	for _, entry := range answer.Map()[abi.RDMA_NLDEV_ATTR_RES_SUMMARY].Attrs().All() {
		e := entry.Attrs().Map()
		if f := fields[e[abi.RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME].String()]; f != nil {
			*f = int(e[abi.RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR].Uint())
		}
	}
	return c, nil
}

// QPs returns the device's queue pairs, including the kernel's own.
func (d Device) QPs() ([]QP, error) {
	return list(d, "QPs", abi.RDMA_NLDEV_CMD_RES_QP_GET, abi.RDMA_NLDEV_ATTR_RES_QP, nil, func(e entry) QP {
		return QP{
			Owner: e.owner(), Num: e.uint32(abi.RDMA_NLDEV_ATTR_RES_LQPN),
			Port: e.int(abi.RDMA_NLDEV_ATTR_PORT_INDEX), PD: e.uint32(abi.RDMA_NLDEV_ATTR_RES_PDN),
			Type:      verbs.QPType(e.uint32(abi.RDMA_NLDEV_ATTR_RES_TYPE)),
			State:     verbs.QPState(e.uint32(abi.RDMA_NLDEV_ATTR_RES_STATE)),
			RemoteNum: e.uint32(abi.RDMA_NLDEV_ATTR_RES_RQPN),
			RecvPSN:   e.uint32(abi.RDMA_NLDEV_ATTR_RES_RQ_PSN), SendPSN: e.uint32(abi.RDMA_NLDEV_ATTR_RES_SQ_PSN),
		}
	})
}

// CQs returns the device's completion queues.
func (d Device) CQs() ([]CQ, error) {
	contexts := []string{"direct", "softirq", "workqueue", "unbound workqueue"} // enum ib_poll_context
	return list(d, "CQs", abi.RDMA_NLDEV_CMD_RES_CQ_GET, abi.RDMA_NLDEV_ATTR_RES_CQ, nil, func(e entry) CQ {
		q := CQ{
			Owner: e.owner(), Num: e.uint32(abi.RDMA_NLDEV_ATTR_RES_CQN), Context: e.uint32(abi.RDMA_NLDEV_ATTR_RES_CTXN),
			Depth: e.int(abi.RDMA_NLDEV_ATTR_RES_CQE), Users: e.int(abi.RDMA_NLDEV_ATTR_RES_USECNT),
			AdaptiveModeration: e.int(abi.RDMA_NLDEV_ATTR_DEV_DIM) != 0,
		}
		if v, ok := e[abi.RDMA_NLDEV_ATTR_RES_POLL_CTX]; ok {
			q.PollContext = nameOf(contexts, v.Uint())
		}
		return q
	})
}

// MRs returns the device's memory regions.
func (d Device) MRs() ([]MR, error) {
	return list(d, "MRs", abi.RDMA_NLDEV_CMD_RES_MR_GET, abi.RDMA_NLDEV_ATTR_RES_MR, nil, func(e entry) MR {
		return MR{
			Owner: e.owner(), Num: e.uint32(abi.RDMA_NLDEV_ATTR_RES_MRN), PD: e.uint32(abi.RDMA_NLDEV_ATTR_RES_PDN),
			Length: e[abi.RDMA_NLDEV_ATTR_RES_MRLEN].Uint(),
			LKey:   e.uint32(abi.RDMA_NLDEV_ATTR_RES_LKEY), RKey: e.uint32(abi.RDMA_NLDEV_ATTR_RES_RKEY),
		}
	})
}

// PDs returns the device's protection domains.
func (d Device) PDs() ([]PD, error) {
	return list(d, "PDs", abi.RDMA_NLDEV_CMD_RES_PD_GET, abi.RDMA_NLDEV_ATTR_RES_PD, nil, func(e entry) PD {
		return PD{
			Owner: e.owner(), Num: e.uint32(abi.RDMA_NLDEV_ATTR_RES_PDN), Context: e.uint32(abi.RDMA_NLDEV_ATTR_RES_CTXN),
			Users: e.int(abi.RDMA_NLDEV_ATTR_RES_USECNT), LocalDMALKey: e.uint32(abi.RDMA_NLDEV_ATTR_RES_LOCAL_DMA_LKEY),
			UnsafeGlobalRKey: e.uint32(abi.RDMA_NLDEV_ATTR_RES_UNSAFE_GLOBAL_RKEY),
		}
	})
}

// Contexts returns the open files of the device.
func (d Device) Contexts() ([]Context, error) {
	return list(d, "contexts", abi.RDMA_NLDEV_CMD_RES_CTX_GET, abi.RDMA_NLDEV_ATTR_RES_CTX, nil, func(e entry) Context {
		return Context{e.owner(), e.uint32(abi.RDMA_NLDEV_ATTR_RES_CTXN)}
	})
}

// CMIDs returns the identifiers of the connection manager that are bound to the device.
func (d Device) CMIDs() ([]CMID, error) {
	return list(d, "CM IDs", abi.RDMA_NLDEV_CMD_RES_CM_ID_GET, abi.RDMA_NLDEV_ATTR_RES_CM_ID, nil, func(e entry) CMID {
		return CMID{
			Owner: e.owner(), Num: e.uint32(abi.RDMA_NLDEV_ATTR_RES_CM_IDN), Port: e.int(abi.RDMA_NLDEV_ATTR_PORT_INDEX),
			QP: e.uint32(abi.RDMA_NLDEV_ATTR_RES_LQPN), QPType: verbs.QPType(e.uint32(abi.RDMA_NLDEV_ATTR_RES_TYPE)),
			PortSpace: portSpace(e.uint32(abi.RDMA_NLDEV_ATTR_RES_PS)), State: cmState(e[abi.RDMA_NLDEV_ATTR_RES_STATE].Uint()),
			Local: sockaddr(e[abi.RDMA_NLDEV_ATTR_RES_SRC_ADDR]), Remote: sockaddr(e[abi.RDMA_NLDEV_ATTR_RES_DST_ADDR]),
		}
	})
}

// SRQs returns the device's shared receive queues.
func (d Device) SRQs() ([]SRQ, error) {
	types := []string{"BASIC", "XRC", "TM"} // enum ib_srq_type
	return list(d, "SRQs", abi.RDMA_NLDEV_CMD_RES_SRQ_GET, abi.RDMA_NLDEV_ATTR_RES_SRQ, nil, func(e entry) SRQ {
		q := SRQ{
			Owner: e.owner(), Num: e.uint32(abi.RDMA_NLDEV_ATTR_RES_SRQN),
			PD: e.uint32(abi.RDMA_NLDEV_ATTR_RES_PDN), CQ: e.uint32(abi.RDMA_NLDEV_ATTR_RES_CQN),
			Type: nameOf(types, e[abi.RDMA_NLDEV_ATTR_RES_TYPE].Uint()),
		}
		for _, qp := range e[abi.RDMA_NLDEV_ATTR_RES_QP].Attrs().All() {
			r := entry(qp.Attrs().Map())
			if num, ok := r[abi.RDMA_NLDEV_ATTR_RES_LQPN]; ok {
				q.QPs = append(q.QPs, Range{uint32(num.Uint()), uint32(num.Uint())})
			} else {
				q.QPs = append(q.QPs, Range{r.uint32(abi.RDMA_NLDEV_ATTR_MIN_RANGE), r.uint32(abi.RDMA_NLDEV_ATTR_MAX_RANGE)})
			}
		}
		return q
	})
}

// list sends a command with attributes, and returns the decoded entries of a table in the answer.
//
// The kernel splits a long list into parts, and continues by the number of entries that it has
// passed (res_get_common_dumpit). So it may repeat an entry if an object is made meanwhile, or
// leave one out if an object is destroyed, without saying so. list reads a list of several parts
// twice, and returns the entries of both readings.
func list[T any](d Device, what string, cmd, table int, attrs nldev.Attrs, decode func(entry) T) (all []T, err error) {
	known := map[int]Owner{}
	add := func(e entry) {
		all = append(all, decode(e))
		if o, ok := any(&all[len(all)-1]).(interface{ resolve(map[int]Owner) }); ok {
			o.resolve(known)
		}
	}
	objects, err := host.Objects(d.Index, table)
	for _, o := range objects {
		add(nldev.Attrs(o).Map())
	}
	switch {
	case err == nil:
		return all, nil
	case err != errors.ErrUnsupported:
		return nil, d.error("list", what, err)
	}
	var entries []entry
	places := map[string]int{} // indexes in entries, by identity
	parts := 0
	read := func() error {
		parts = 0
		return d.ask(cmd, true, attrs, func(a nldev.Attrs) error {
			parts++
			for _, v := range slices.Clone(a).Map()[table].Attrs().All() {
				e := entry(v.Attrs().Map())
				id := e.identity(table)
				if i, ok := places[id]; ok && id != "" {
					entries[i] = e
					continue
				}
				places[id] = len(entries)
				entries = append(entries, e)
			}
			return nil
		})
	}
	err = read()
	if err == nil && parts > 1 {
		err = read()
	}
	if err != nil {
		return nil, d.error("list", what, err)
	}
	for _, e := range entries {
		add(e)
	}
	return all, nil
}

// identities are the attributes that identify an entry of a table. QPs 0 and 1 exist at each port; others get
// one as they become INIT.
var identities = map[int][]int{
	abi.RDMA_NLDEV_ATTR_RES_QP:       {abi.RDMA_NLDEV_ATTR_RES_LQPN, abi.RDMA_NLDEV_ATTR_PORT_INDEX},
	abi.RDMA_NLDEV_ATTR_RES_CQ:       {abi.RDMA_NLDEV_ATTR_RES_CQN},
	abi.RDMA_NLDEV_ATTR_RES_MR:       {abi.RDMA_NLDEV_ATTR_RES_MRN},
	abi.RDMA_NLDEV_ATTR_RES_PD:       {abi.RDMA_NLDEV_ATTR_RES_PDN},
	abi.RDMA_NLDEV_ATTR_RES_CTX:      {abi.RDMA_NLDEV_ATTR_RES_CTXN},
	abi.RDMA_NLDEV_ATTR_RES_CM_ID:    {abi.RDMA_NLDEV_ATTR_RES_CM_IDN},
	abi.RDMA_NLDEV_ATTR_RES_SRQ:      {abi.RDMA_NLDEV_ATTR_RES_SRQN},
	abi.RDMA_NLDEV_ATTR_STAT_COUNTER: {abi.RDMA_NLDEV_ATTR_STAT_COUNTER_ID, abi.RDMA_NLDEV_ATTR_PORT_INDEX},
}

// identity returns the values that identify an entry's object, or "" if the kernel left them out.
func (e entry) identity(table int) string {
	attrs := identities[table]
	if len(attrs) == 0 || e[attrs[0]] == nil {
		return ""
	}
	if table == abi.RDMA_NLDEV_ATTR_RES_QP && e[attrs[0]].Uint() > 1 {
		attrs = attrs[:1]
	}
	var id []byte
	for _, attr := range attrs {
		id = binary.NativeEndian.AppendUint64(id, e[attr].Uint())
	}
	return string(id)
}

// do sends a command about the device, with attributes beside its index, and returns the answer.
func (d Device) do(cmd int, attrs nldev.Attrs) (answer nldev.Attrs, err error) {
	err = d.ask(cmd, false, attrs, func(a nldev.Attrs) error {
		answer = a
		return nil
	})
	return answer, err
}

// ask sends a command about the device, with attributes beside its index, and calls each for every
// part of the answer. dump asks for a list.
func (d Device) ask(cmd int, dump bool, attrs nldev.Attrs, each func(nldev.Attrs) error) error {
	if d.Index < 0 {
		return errors.ErrUnsupported
	}
	request := append(d.handle(), attrs...)
	switch {
	case d.src.ask != nil:
		return d.src.ask(cmd, dump, request, each)
	case dump:
		return nldev.Dump(cmd, request, each)
	}
	answer, err := nldev.Do(cmd, request)
	if err != nil {
		return err
	}
	return each(answer)
}

// handle returns the attribute that selects the device.
func (d Device) handle() nldev.Attrs {
	return nldev.Attrs{}.Uint32(abi.RDMA_NLDEV_ATTR_DEV_INDEX, uint32(d.Index))
}

func (d Device) error(op, object string, err error) error {
	return &verbs.Error{Op: op, Object: object, Device: d.Name, Err: err}
}

// entry is an entry of a table, by the types of its attributes.
type entry map[int]nldev.Value

func (e entry) uint32(attr int) uint32 { return uint32(e[attr].Uint()) }
func (e entry) int(attr int) int       { return int(e[attr].Uint()) }

// owner returns the thread or the part of the kernel that an entry names. list looks up the thread.
func (e entry) owner() Owner {
	return Owner{TID: e.int(abi.RDMA_NLDEV_ATTR_RES_PID), Kernel: e[abi.RDMA_NLDEV_ATTR_RES_KERN_NAME].String()}
}

// resolve looks up the thread's process, once for all objects of a list, most of which have one
// owner.
func (o *Owner) resolve(known map[int]Owner) {
	if o.TID == 0 {
		return
	}
	p, ok := known[o.TID]
	if !ok {
		p = process(o.TID)
		known[o.TID] = p
	}
	o.PID, o.Comm = p.PID, p.Comm
}

// process returns the process and name of a thread: the kernel notes the thread that created the
// resource (rdma_restrack_attach_task).
func process(tid int) (o Owner) {
	status, _ := host.ReadAttr("/proc/" + strconv.Itoa(tid) + "/status") // it may have ended
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); name {
		case "Name":
			o.Comm = value
		case "Tgid":
			o.PID, _ = strconv.Atoi(value)
		}
	}
	if o.PID == 0 && tid == os.Getpid() { // a system without /proc
		o.PID, o.Comm = tid, filepath.Base(os.Args[0])
	}
	return o
}

// sockaddr returns the address of a struct sockaddr_storage, if it is one of IP.
func sockaddr(v nldev.Value) netip.AddrPort {
	if len(v) < 28 {
		return netip.AddrPort{}
	}
	port := binary.BigEndian.Uint16(v[2:])
	switch binary.NativeEndian.Uint16(v) {
	case 2: // AF_INET
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(v[4:])), port)
	case 10: // AF_INET6
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(v[8:])), port)
	}
	return netip.AddrPort{}
}

// portSpace returns the name of an enum rdma_ucm_port_space.
func portSpace(ps uint32) string {
	names := map[uint32]string{abi.RDMA_PS_IPOIB: "IPOIB", abi.RDMA_PS_IB: "IB", abi.RDMA_PS_TCP: "TCP", abi.RDMA_PS_UDP: "UDP"}
	return cmp.Or(names[ps], "unknown")
}

// cmState returns the name of an enum rdma_cm_state (include/rdma/rdma_cm.h).
func cmState(state uint64) string {
	return nameOf([]string{
		"IDLE", "ADDR_QUERY", "ADDR_RESOLVED", "ROUTE_QUERY", "ROUTE_RESOLVED", "CONNECT", "DISCONNECT",
		"ADDR_BOUND", "LISTEN", "DEVICE_REMOVAL", "DESTROYING",
	}, state)
}

func nameOf(names []string, i uint64) string {
	if i < uint64(len(names)) { // not converted to an int, which may have 32 bits
		return names[i]
	}
	return "unknown"
}
