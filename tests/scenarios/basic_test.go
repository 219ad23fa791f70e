package scenarios

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmadev"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

func (e *env) ah(pd *uverbs.PD) (*uverbs.AH, error) {
	gid, err := e.ctx.FindGID(1, netip.Addr{})
	if err != nil {
		return nil, err
	}
	return pd.CreateAH(verbs.AddressVector{Global: true, DGID: gid.GID, SGIDIndex: uint8(gid.Index), HopLimit: 64, Port: 1})
}

func createAH(e *env) error {
	ah, err := e.ah(e.pd())
	if err != nil {
		return err
	}
	if got := ah.Attr(); got.Port != 1 || !got.Global {
		return fmt.Errorf("attributes %+v", got)
	}
	return ah.Close()
}

var addr = []scenario{
	{"addr/create_ah", notOnSIW, createAH},
	{"addr/create_ah_roce", notOnSIW, func(e *env) error {
		port := labtest.Must(e.ctx.QueryPort(1))(e.t)
		switch ah, err := e.pd().CreateAH(verbs.AddressVector{Port: 1, DLID: port.LID}); {
		case err == nil && port.LinkLayer == verbs.LinkInfiniBand:
			return ah.Close() // a LID is an address
		case err == nil:
			return errors.New("RoCE took an address without a route")
		case e.siw || port.LinkLayer == verbs.LinkInfiniBand:
			return err
		}
		return createAH(e)
	}},
	{"addr/destroy_ah", notOnSIW, func(e *env) error {
		ah, err := e.ah(e.pd())
		if err != nil {
			return err
		}
		return errors.Join(ah.Close(), ah.Close())
	}},
}

var pd = []scenario{
	{"pd/alloc_pd", everywhere, func(e *env) error { e.pd(); return nil }},
	{"pd/dealloc_pd", everywhere, func(e *env) error { return e.pd().Close() }},
	{"pd/multiple_pd_creation", everywhere, func(e *env) error {
		for range 100 {
			e.pd()
		}
		return nil
	}},
	{"pd/destroy_pd_twice", everywhere, func(e *env) error { pd := e.pd(); return errors.Join(pd.Close(), pd.Close()) }},
}

var device = []scenario{
	{"device/dev_list", everywhere, func(e *env) error {
		devs, err := uverbs.Devices()
		for _, d := range devs {
			if d.Name == e.dev {
				return err
			}
		}
		return fmt.Errorf("not in %v, %w", devs, err)
	}},
	{"device/open_dev", everywhere, func(e *env) error { return nil }},
	{"device/query_device", everywhere, func(e *env) error {
		if a := e.attr; a.Ports != 1 || a.MaxQP == 0 || a.MaxQPWR == 0 || a.MaxCQ == 0 || a.MaxCQE == 0 || a.MaxMR == 0 || a.MaxPD == 0 {
			return fmt.Errorf("%+v", a)
		}
		return nil
	}},
	{"device/query_device_ex", everywhere, func(e *env) error {
		if e.attr.CapFlags == 0 {
			return errors.New("no capabilities")
		}
		return nil
	}},
	{"device/phys_port_cnt_ex", everywhere, func(e *env) error {
		d, err := rdmadev.Find(e.ctx.Device().Name)
		if n := e.attr.Ports; err != nil || n != len(d.Ports) {
			return fmt.Errorf("%d ports, sysfs has %d, %v", n, len(d.Ports), err)
		}
		return nil
	}},
	{"device/query_pkey", everywhere, func(e *env) error {
		keys, err := e.ctx.PKeys(1)
		if err == nil && !e.siw && (len(keys) == 0 || keys[0] != 0xffff) {
			err = fmt.Errorf("P_Keys %x", keys)
		}
		return err
	}},
	{"device/get_pkey_index", notOnSIW, func(e *env) error {
		i, err := e.ctx.PKeyIndex(1, 0xffff)
		if err == nil && i != 0 {
			err = fmt.Errorf("index %d", i)
		}
		return err
	}},
	{"device/query_gid", everywhere, func(e *env) error {
		g, err := e.ctx.QueryGID(1, 0)
		if err == nil && g.GID == (verbs.GID{}) {
			err = errors.New("empty GID")
		}
		return err
	}},
	{"device/query_gid_table", everywhere, func(e *env) error {
		table, err := e.ctx.GIDTable()
		if err == nil && len(table) == 0 {
			err = errors.New("empty table")
		}
		return err
	}},
	{"device/query_gid_ex", everywhere, func(e *env) error {
		table := labtest.Must(e.ctx.GIDTable())(e.t)
		for _, want := range table {
			got, err := e.ctx.QueryGID(want.Port, want.Index)
			if err != nil {
				return err
			}
			if got != want {
				return fmt.Errorf("%+v, in the table %+v", got, want)
			}
		}
		return nil
	}},
	{"device/query_gid_ex_bad_flow", everywhere, func(e *env) error {
		_, err1 := e.ctx.QueryGID(7, 0)
		_, err2 := e.ctx.QueryGID(1, 1<<20)
		return errors.Join(refused(err1, verbs.ErrRange), refused(err2, unix.EINVAL, verbs.ErrRange))
	}},
	{"device/query_port", everywhere, func(e *env) error {
		p, err := e.ctx.QueryPort(1)
		if err == nil && (p.State != verbs.PortActive || p.MaxMessage == 0) {
			err = fmt.Errorf("%+v", p)
		}
		return err
	}},
	{"device/query_port_bad_flow", everywhere, func(e *env) error {
		_, err := e.ctx.QueryPort(2)
		return refused(err, verbs.ErrRange)
	}},
	{"device/query_port_speed", with("port speed query"), probe("port speed query")},
	{"device/create_dm", nowhere, probe("device memory")},
}

var cq = []scenario{
	{"cq/create_cq", everywhere, func(e *env) error {
		for _, depth := range []int{1, 7, 4096} {
			cq, err := e.ctx.CreateCQ(uverbs.CQOptions{Depth: depth})
			if err != nil {
				return err
			}
			if cq.Cap() < depth {
				return fmt.Errorf("a CQ of %d, asked for %d", cq.Cap(), depth)
			}
			if err := cq.Close(); err != nil {
				return err
			}
		}
		return nil
	}},
	{"cq/create_cq_with_comp_channel", everywhere, func(e *env) error {
		ch, err := e.ctx.CreateCompChannel()
		if err != nil {
			return err
		}
		cq, err := e.ctx.CreateCQ(uverbs.CQOptions{Depth: 1, Channel: ch})
		if err != nil {
			return err
		}
		return errors.Join(refused(ch.Close(), verbs.ErrInUse), cq.Close(), ch.Close())
	}},
	{"cq/create_cq_bad_flow", everywhere, func(e *env) error {
		_, err1 := e.ctx.CreateCQ(uverbs.CQOptions{Depth: e.attr.MaxCQE + 1})
		_, err2 := e.ctx.CreateCQ(uverbs.CQOptions{Depth: 1, Vector: e.ctx.CompVectors() + 1})
		return errors.Join(refused(err1, unix.EINVAL), refused(err2, unix.EINVAL))
	}},
	{"cq/resize_cq", notOnSIW, func(e *env) error {
		a, b := e.pair(rdmatest.PairOptions{})
		if err := a.SendCQ.Resize(500); err != nil {
			return err
		}
		if a.SendCQ.Cap() < 500 {
			return fmt.Errorf("a CQ of %d", a.SendCQ.Cap())
		}
		// Resize with completions in it: none may be lost.
		for i := range uint64(10) {
			wr := verbs.SendWR{ID: i, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Inline: []byte{1}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}
			if _, err := a.QP.PostSend(wr); err != nil {
				return err
			}
		}
		if err := a.SendCQ.Resize(1000); err != nil {
			return err
		}
		for i := range uint64(10) {
			if wc, err := e.wait(a.SendCQ, false); err != nil || wc.ID != i {
				return fmt.Errorf("completion %+v, %w, want %d", wc, err, i)
			}
		}
		return e.traffic(a, b, 5, 100, false)
	}},
}

var cqEvents = []scenario{
	{"cq_events/cq_events_rc", everywhere, func(e *env) error {
		a, b := e.pair(rdmatest.PairOptions{Events: true})
		return e.traffic(a, b, 50, 1000, true)
	}},
	{"cq_events/cq_events_ud", notOnSIW, func(e *env) error { return e.ud(true, 500) }},
}

// ud exchanges datagrams of n bytes.
func (e *env) ud(events bool, n int) error {
	if e.siw {
		return e.ctx.Probe(uverbs.FeatureUD)
	}
	a, b := e.pair(rdmatest.PairOptions{Type: verbs.UD, Events: events})
	return e.traffic(a, b, 20, n, events)
}

// Completions have all the fields of extended CQs, except timestamps, for which this library has no
// calls.
var cqEx = []scenario{
	{"cqex/rc_traffic_cq_ex", everywhere, func(e *env) error {
		a, b := e.pair(rdmatest.PairOptions{OneCQ: true})
		return e.traffic(a, b, 20, 1000, false)
	}},
	{"cqex/ud_traffic_cq_ex", notOnSIW, func(e *env) error { return e.ud(false, 1000) }},
	{"cqex/xrc_traffic_cq_ex", nowhere, probe("XRC domain")},
	{"cqex/create_cq_ex", nowhere, probe("CQ timestamps")},
	{"cqex/create_cq_ex_bad_flow", nowhere, probe("CQ ignoring overruns")},
}

var sharedPD = []scenario{
	{"shared_pd/imported_rc_ex_rdma_write", everywhere, func(e *env) error {
		a, b := e.pair(rdmatest.PairOptions{})
		other, err := uverbs.ImportContext(b.PD.Context().FD())
		if err != nil {
			return err
		}
		labtest.Close(e.t, other)
		pd, err := other.ImportPD(b.PD.Handle())
		if err != nil {
			return err
		}
		labtest.Close(e.t, pd)
		mr, err := pd.ImportMR(b.MR.Handle())
		if err != nil {
			return err
		}
		if mr.LKey() != b.MR.LKey() || mr.RKey() != b.MR.RKey() || mr.Bytes() != nil {
			return fmt.Errorf("imported keys %#x, %#x", mr.LKey(), mr.RKey())
		}
		if err := mr.Close(); err != nil {
			return err
		}
		// QPs of the original PD can use a region of the imported PD.
		made, err := pd.AllocMR(4096, e.access(), uverbs.MROptions{})
		if err != nil {
			return err
		}
		labtest.Close(e.t, made)
		there := *b
		there.MR = made
		return e.write(a, &there, 1000, made.RKey())
	}},
}

// Parent domains exist only in C: they hold allocators, and locks that may be left
// out. Here programs choose buffers in any case.
var parentDomain = []scenario{
	{"parent_domain/default_allocators_rc_traffic", everywhere, func(e *env) error {
		a, b := e.pair(rdmatest.PairOptions{})
		return e.traffic(a, b, 10, 1000, false)
	}},
	{"parent_domain/mem_align_rc_traffic", everywhere, func(e *env) error {
		a, b := e.pair(rdmatest.PairOptions{})
		mem := make([]byte, 8192)
		mr, err := a.PD.RegisterMR(mem[1:], e.access(), uverbs.MROptions{})
		if err != nil {
			return err
		}
		labtest.Close(e.t, mr)
		odd := *a
		odd.MR = mr
		return e.traffic(&odd, b, 10, 1000, false)
	}},
	{"parent_domain/mem_align_ud_traffic", notOnSIW, func(e *env) error { return e.ud(false, 333) }},
	{"parent_domain/mem_align_srq_excq_rc_traffic", everywhere, func(e *env) error {
		a, b := e.pair(rdmatest.PairOptions{SRQ: true})
		return e.traffic(a, b, 10, 777, false)
	}},
	{"parent_domain/huge_page_traffic", everywhere, func(e *env) error {
		a, b := e.pair(rdmatest.PairOptions{})
		mr, err := hugeMR(e, b.PD)
		if err != nil {
			return err
		}
		labtest.Close(e.t, mr)
		huge := *b
		huge.MR = mr
		return e.traffic(a, &huge, 10, 60000, false)
	}},
}

// After a fork the kernel copies pinned pages for the child immediately, and Go has
// no fork that continues to run Go code: these scenarios check that starting a program
// does not affect regions.
var fork = []scenario{
	{"fork/is_fork_initialized", everywhere, func(e *env) error {
		a, b := e.pair(rdmatest.PairOptions{})
		for range 5 {
			if err := exec.Command("/proc/self/exe", "-test.run=^$").Run(); err != nil {
				return err
			}
			if err := errors.Join(e.traffic(a, b, 2, 4096, false), e.write(a, b, 4096, b.MR.RKey())); err != nil {
				return err
			}
		}
		return nil
	}},
}
