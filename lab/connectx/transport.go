//go:build linux

package connectx

import (
	"net/netip"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

// transport is the RDMA half of the adapter: memory keys, CQs, QPs and SRQs, which engine executes.
//
// Locks: the engine reads the guest's queues through the refill functions and hands completions to
// deliver, and holds its lock of the QP, and of the SRQ, meanwhile. These functions take shown.mu, or
// cq.mu and then eq.mu, and the locks of tables, of the flusher, of faults and of the bus. Nobody who
// holds one of these calls the engine: a table's lock covers the table alone, and the state that
// refill needs of a queue is guarded by the engine's lock. Only mkey.mu stands between locks of the
// engine: after a QP's, which execute and invalidate have, and before those of regions.
type transport struct {
	infiniBand bool
	eng        *engine.Device
	paths      addressing
	pds        pdTable
	mkeys      keyTable
	cqs        cqTable
	srqs       srqTable
	qps        qpTable
	dcts       dctTable
}

func newTransport(cfg Config, guid uint64, env *env, caps *capabilities, uars *objects[struct{}], eqs *eqTable) (*transport, error) {
	ec := engine.Config{Name: cfg.Name, NodeGUID: verbs.GUID{}, Network: cfg.Network, MTU: 5}
	if cfg.InfiniBand {
		ec.LIDs = lids
	}
	be.PutUint64(ec.NodeGUID[:], guid)
	eng, err := engine.New(ec)
	if err != nil {
		return nil, err
	}
	umrPD, err := eng.AllocPD()
	if err != nil {
		eng.Close()
		return nil, err
	}
	if cfg.InfiniBand {
		var gid [16]byte
		be.PutUint64(gid[:], subnetPrefix)
		be.PutUint64(gid[8:], guid)
		for i, a := range []netip.Addr{lidAddr(cfg.lid()), netip.AddrFrom16(gid)} {
			if err := eng.SetGID(i, a); err != nil {
				eng.Close()
				return nil, err
			}
		}
	}
	t := &transport{infiniBand: cfg.InfiniBand, eng: eng, paths: addressing{infiniBand: cfg.InfiniBand}, pds: pdTable{eng: eng}}
	pds := &t.pds.objects
	t.mkeys = keyTable{env: env, pds: pds}
	t.cqs = cqTable{env: env, caps: caps, uars: uars, eqs: eqs, eng: eng}
	t.srqs = srqTable{env: env, caps: caps, pds: pds, eqs: eqs}
	t.qps = qpTable{
		env: env, caps: caps, uars: uars, eqs: eqs, pds: pds, umrPD: umrPD,
		keys: &t.mkeys, cqs: &t.cqs, srqs: &t.srqs, paths: &t.paths,
	}
	t.dcts.qps = &t.qps
	return t, nil
}

// reset destroys all objects, users first. No command may be running.
func (t *transport) reset() {
	t.dcts.clear((*dct).destroy)
	t.qps.clear((*qp).destroy)
	t.srqs.clear((*srq).destroy)
	t.cqs.clear((*cq).destroy)
	t.mkeys.reset()
	t.pds.clear(deallocPD)
	if !t.infiniBand {
		for _, g := range t.eng.GIDs() {
			t.eng.SetGID(g.Index, netip.Addr{})
		}
	}
}

// close ends the engine. It is called once, after reset.
func (t *transport) close() error {
	t.qps.flusher.End()
	return t.eng.Close()
}

// setAddress sets GID i from a struct roce_addr_layout, or removes it if the address is zero.
func (t *transport) setAddress(i int, addr []byte) ifc.Status {
	const roceV2 = 2
	a := netip.AddrFrom16([16]byte(ifc.RoceAddrLayoutSourceL3Address.At(addr))).Unmap()
	if a.IsUnspecified() || a == netip.IPv4Unspecified() || ifc.RoceAddrLayoutRoceVersion.Get(addr) != roceV2 {
		a = netip.Addr{}
	}
	t.paths.gidChanges.Add(1)
	// A network that needs the zone of a link-local address goes without this GID.
	if err := t.eng.SetGID(i, a); err != nil && !a.IsLinkLocalUnicast() {
		return ifc.StatusBadParamErr
	}
	return ifc.StatusOk
}
