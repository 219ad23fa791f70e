//go:build linux

package connectx

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/lab/vfiouser"
)

// transport is the RDMA half of the adapter: memory keys, CQs, QPs and SRQs, which engine executes.
//
// The engine reads the guest's queues through refillSend and refillRecv and hands completions to
// deliver, with its locks held: that of the QP and, for an SRQ, that too. These functions take
// cq.mu and then eq.mu, and the locks of tables. So no lock of this package is held while the
// engine is called; a table's is held for the table alone. What a doorbell needs of a QP belongs to
// the engine's lock of the QP, as the functions that use it are called with that.
type transport struct {
	d     *Device
	eng   *engine.Device
	umrPD *engine.PD // of QPs for UMR requests

	numQPs   int          // of commands alone, as numRecvs
	numRecvs int          // entries of SRQs
	xlt      atomic.Int64 // bytes of translation entries

	mkeys objects[*mkey]
	cqs   objects[*cq]
	qps   objects[*qp]
	srqs  objects[*srq]

	failures  [2]failures      // of requests and receives
	refused   [2]atomic.Uint64 // requests of peers that no receive completes with: invalid, and without rights
	overflows atomic.Uint64    // of CQs

	allMu   sync.Mutex
	all     *vfiouser.View // all memory of the guest, for physical keys; made when needed
	gidTurn atomic.Uint32  // changes with the GIDs, of which address handles are made
	flusher flusher
}

func newTransport(d *Device) (*transport, error) {
	cfg := engine.Config{Name: d.cfg.Name, NodeGUID: verbs.GUID{}, Network: d.cfg.Network, MTU: 5}
	if d.cfg.InfiniBand {
		cfg.LIDs = lids
	}
	be.PutUint64(cfg.NodeGUID[:], d.port.guid)
	eng, err := engine.New(cfg)
	if err != nil {
		return nil, err
	}
	t := &transport{d: d, eng: eng}
	if t.umrPD, err = eng.AllocPD(); err != nil {
		eng.Close()
		return nil, err
	}
	if d.cfg.InfiniBand {
		var gid [16]byte
		be.PutUint64(gid[:], subnetPrefix)
		be.PutUint64(gid[8:], d.port.guid)
		for i, a := range []netip.Addr{lidAddr(d.cfg.lid()), netip.AddrFrom16(gid)} {
			if err := eng.SetGID(i, a); err != nil {
				eng.Close()
				return nil, err
			}
		}
	}
	return t, nil
}

// reset destroys all objects, of which PDs come after. No command is being executed.
func (t *transport) reset() {
	t.qps.clear((*qp).destroy)
	t.srqs.clear((*srq).destroy)
	t.cqs.clear((*cq).destroy)
	t.mkeys.clear((*mkey).destroy)
	if t.all != nil {
		t.all.Close()
		t.all = nil
	}
	if !t.d.cfg.InfiniBand {
		for _, g := range t.eng.GIDs() {
			t.eng.SetGID(g.Index, netip.Addr{})
		}
	}
}

// close ends the engine. It is called once, after reset.
func (t *transport) close() error {
	t.flusher.end()
	return t.eng.Close()
}

// setAddress sets GID i to that of a struct roce_addr_layout, or removes it if that is zero.
func (t *transport) setAddress(i int, addr []byte) status {
	const roceV2 = 2
	a := netip.AddrFrom16([16]byte(roceAddrLayoutSourceL3Address.at(addr))).Unmap()
	if a.IsUnspecified() || a == netip.IPv4Unspecified() || roceAddrLayoutRoceVersion.get(addr) != roceV2 {
		a = netip.Addr{}
	}
	t.gidTurn.Add(1)
	// A network that needs the zone of a link-local address goes without this GID.
	if err := t.eng.SetGID(i, a); err != nil && !a.IsLinkLocalUnicast() {
		return statusBadParamErr
	}
	return statusOk
}

// lids are the addresses that the engine has for LIDs. InfiniBand's packets go over the same networks
// as those of RoCE v2: between LIDs, or with a GRH between GIDs.
var lids = netip.MustParsePrefix("fd1b::/112")

func lidAddr(lid uint16) netip.Addr {
	b := lids.Addr().As16()
	be.PutUint16(b[14:], lid)
	return netip.AddrFrom16(b)
}

// lidOf returns the LID of the port whose MAC address, GUID, or address of its LID, has this end:
// adapters on a wire have different ones.
func lidOf(end []byte) uint16 { return max(be.Uint16(end)&0x7fff, 1) }

// addressVector returns the path to a GID or, on InfiniBand without a GRH, to a LID.
func (t *transport) addressVector(gid []byte, lid uint16, grh bool, index, tclass, hops uint8) verbs.AddressVector {
	av := verbs.AddressVector{Global: true, Port: 1, SGIDIndex: index, TrafficClass: tclass, HopLimit: hops, DGID: verbs.GID(gid)}
	if !t.d.cfg.InfiniBand {
		return av
	}
	const firstGroup = 0xc000 // the LIDs of multicast groups
	av.SGIDIndex = min(index, 0xfe) + 1
	switch group := gid[0] == 0xff; {
	case !grh:
		av.SGIDIndex, av.DGID = 0, lidAddr(lid).As16()
	case group && lid < firstGroup, !group && (be.Uint64(gid) != subnetPrefix || lid != lidOf(gid[14:])):
		av.DGID = lidAddr(0).As16() // nobody's: the port with the LID drops what has not its GID
	}
	return av
}

// ring is a queue in the guest's memory with its doorbell record: mapped at an offset, as entries of
// a size and number that are powers of two.
type ring struct {
	view, record *vfiouser.View
	mem          []byte // of the entries
	start        int    // of mem in view
	recordOff    int
	count        uint32
	stride       int
	taken        uint16 // entries of a send or receive queue that the adapter has taken
}

// mapRing maps a ring of count entries of stride bytes from a list of pages. The offset within the
// first page has units of 1/64 of it.
func (d *Device) mapRing(r *ring, list []byte, logPage, offset int, record uint64) status {
	shift := 12 + logPage
	if shift > 30 {
		return statusBadParamErr
	}
	start := offset << shift / 64
	size := int(r.count) * r.stride
	var st status
	if r.view, st = d.pages(list, (start+size+1<<shift-1)>>shift, shift, 0); st != statusOk {
		return st
	}
	r.start, r.mem = start, r.view.Bytes()[start:start+size]
	if start%16 != 0 {
		st = statusBadParamErr
	} else {
		r.record, r.recordOff, st = d.doorbellRecord(record)
	}
	if st != statusOk {
		r.close()
	}
	return st
}

func (r *ring) close() {
	for _, v := range []*vfiouser.View{r.view, r.record} {
		if v != nil {
			v.Close()
		}
	}
	r.view, r.record, r.mem = nil, nil, nil
}

// at returns entry i modulo the number of entries.
func (r *ring) at(i uint32) []byte {
	o := int(i&(r.count-1)) * r.stride
	return r.mem[o : o+r.stride]
}

// posted returns word n of the doorbell record.
func (r *ring) posted(n int) uint32 { return bigEndian(r.record.Word(r.recordOff + 4*n).Load()) }

// waiting returns how many receives are posted that have not been taken.
func (r *ring) waiting() int {
	return int(min(uint32(uint16(r.posted(recvRecord))-r.taken), r.count))
}

// flusher flushes receives that the guest posts to QPs in the error state: a receive has no
// doorbell. It runs while there are such QPs.
type flusher struct {
	mu      sync.Mutex
	qps     map[*qp]struct{}
	running bool
	ended   bool
	done    sync.WaitGroup
}

const flushInterval = 2 * time.Millisecond

// add makes the flusher watch a QP. It may be called with locks of the engine held.
func (f *flusher) add(q *qp) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return
	}
	if f.qps == nil {
		f.qps = map[*qp]struct{}{}
	}
	f.qps[q] = struct{}{}
	if !f.running {
		f.running = true
		f.done.Go(f.run)
	}
}

func (f *flusher) remove(q *qp) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.qps, q)
}

func (f *flusher) end() {
	f.mu.Lock()
	f.ended = true
	clear(f.qps)
	f.mu.Unlock()
	f.done.Wait()
}

func (f *flusher) run() {
	for {
		time.Sleep(flushInterval)
		f.mu.Lock()
		if len(f.qps) == 0 {
			f.running = false
			f.mu.Unlock()
			return
		}
		list := slices.Collect(maps.Keys(f.qps))
		f.mu.Unlock()
		for _, q := range list {
			if q.overrun.Load() {
				q.e.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState)
			}
			q.e.Doorbell()
			if q.e.Query().State != verbs.StateErr {
				f.remove(q)
			}
		}
	}
}
