//go:build linux

package connectx

import (
	"net/netip"
	"sync"
	"sync/atomic"

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
