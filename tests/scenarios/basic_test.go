package scenarios

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmadev"
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

var addr = []test{
	{"addr/create_ah", with(uverbs.FeatureAH), createAH},
	{"addr/create_ah_roce", with(uverbs.FeatureAH), func(e *env) error {
		port := labtest.Must(e.ctx.QueryPort(1))(e.t)
		switch ah, err := e.pd().CreateAH(verbs.AddressVector{Port: 1, DLID: port.LID}); {
		case err == nil && port.LinkLayer == verbs.LinkInfiniBand:
			return ah.Close() // a LID is an address
		case err == nil:
			return errors.New("RoCE took an address without a route")
		case !e.has(uverbs.FeatureAH) || port.LinkLayer == verbs.LinkInfiniBand:
			return err
		}
		return createAH(e)
	}},
	{"addr/destroy_ah", with(uverbs.FeatureAH), func(e *env) error {
		ah, err := e.ah(e.pd())
		if err != nil {
			return err
		}
		return errors.Join(ah.Close(), ah.Close())
	}},
}

var pd = []test{
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

var device = []test{
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
		if err == nil && e.has(uverbs.FeaturePKeys) && (len(keys) == 0 || keys[0] != 0xffff) {
			err = fmt.Errorf("P_Keys %x", keys)
		}
		return err
	}},
	{"device/get_pkey_index", with(uverbs.FeaturePKeys), func(e *env) error {
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
}

var cq = []test{
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
}

// missing are tests of what this library has no calls for.
var missing = []test{
	{"cqex/create_cq_ex", with(uverbs.FeatureTimestamps), probe(uverbs.FeatureTimestamps)},
	{"cqex/create_cq_ex_bad_flow", nowhere, probe("CQ ignoring overruns")},
	{"device/create_dm", nowhere, probe("device memory")},
	{"mr/create_dm_mr", nowhere, probe("device memory")},
	{"odp/odp_implicit_rc_traffic", nowhere, probe("implicit on-demand paging")},
	{"qpex/qp_ex_xrc_send", nowhere, probe("XRC domain")}, // also of atomics, CQs and on-demand paging
}
