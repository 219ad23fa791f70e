package uverbs

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
)

// attribute probes a feature that the device's attributes show.
func attribute(has func(*verbs.DeviceAttr) bool) func(*prober) error {
	return func(p *prober) error {
		attr, err := p.c.QueryDevice()
		if err == nil && !has(attr) {
			err = fmt.Errorf("not among the device's capabilities: %w", errors.ErrUnsupported)
		}
		return err
	}
}

func capability(bits uint64) func(*prober) error {
	return attribute(func(a *verbs.DeviceAttr) bool { return a.CapFlags&bits != 0 })
}

func qpType(typ verbs.QPType) func(*prober) error {
	return func(p *prober) error {
		p.qp(typ)
		return nil
	}
}

// uncalled are the features that this package has no calls for, whatever the kernel's driver has.
var uncalled = []Feature{
	"CQ ignoring overruns", "CQ timestamps", "DMA handles", "QP rate limit", "XRC domain", "completion counters", "device clock",
	"device memory", "flow actions", "flow counters", "flow steering", "implicit on-demand paging", "port speed query",
	"receive indirection tables", "tag matching SRQ", "work queues",
}

var probes = map[Feature]func(*prober) error{
	FeatureRC:              qpType(verbs.RC),
	FeatureUC:              qpType(verbs.UC),
	FeatureUD:              qpType(verbs.UD),
	FeatureRawPacket:       qpType(abi.IB_UVERBS_QPT_RAW_PACKET),
	FeatureDriverQP:        qpType(abi.IB_UVERBS_QPT_DRIVER),
	FeatureMWType1:         mwType(verbs.MWType1),
	FeatureMWType2:         mwType(verbs.MWType2),
	FeatureFlush:           capability(abi.IB_UVERBS_DEVICE_FLUSH_GLOBAL),
	FeaturePersistentFlush: capability(abi.IB_UVERBS_DEVICE_FLUSH_PERSISTENT),
	FeatureAtomicWrite:     capability(abi.IB_UVERBS_DEVICE_ATOMIC_WRITE),
	FeatureInvalidate:      capability(abi.IB_UVERBS_DEVICE_MEM_MGT_EXTENSIONS),
	FeatureAtomics:         attribute(func(a *verbs.DeviceAttr) bool { return a.AtomicCap != verbs.AtomicNone }),
	FeaturePKeys: func(p *prober) error {
		_, err := p.c.PKeyIndex(1, 0xffff) // every port with a table has this key
		return err
	},
	FeatureOnDemand: func(p *prober) error {
		p.mr(verbs.AccessOnDemand|verbs.AccessLocalWrite, MROptions{})
		return nil
	},
	FeatureSRQ: func(p *prober) error {
		p.srq()
		return nil
	},
	FeatureSRQResize: func(p *prober) error { return p.srq().Resize(2) },
	FeatureAH: func(p *prober) error {
		pd := p.pd()
		gid, err := p.c.FindGID(1, anyAddr)
		if err != nil {
			return err
		}
		ah, err := pd.CreateAH(verbs.AddressVector{Global: true, DGID: gid.GID, SGIDIndex: uint8(gid.Index), HopLimit: 1, Port: 1})
		mustCreate(p, ah, err)
		return nil
	},
	FeatureMulticast: func(p *prober) error {
		qp, group := p.qp(verbs.UD), verbs.GID{0xff, 0x0e, 15: 1}
		const lid = 0xc000 // the first for multicast, of which the kernel wants one on InfiniBand (is_valid_mcast_lid)
		if err := qp.AttachMulticast(group, lid); err != nil {
			return err
		}
		return qp.DetachMulticast(group, lid)
	},
	FeatureCQResize:     func(p *prober) error { return p.cq().Resize(2) },
	FeatureCQModeration: func(p *prober) error { return p.cq().Moderate(1, 1) },
	FeatureReregAccess: func(p *prober) error {
		all := verbs.AccessAll &^ verbs.AccessRemoteAtomic
		return p.mr(verbs.AccessLocalWrite, MROptions{}).Rereg(ReregOptions{Access: &all})
	},
	FeatureReregPD: func(p *prober) error {
		mr, pd := p.mr(verbs.AccessLocalWrite, MROptions{}), p.pd()
		p.closers = append(p.closers, mr.Close) // before the PD it moves to
		return mr.Rereg(ReregOptions{PD: pd})
	},
	FeatureReregMemory: func(p *prober) error {
		return p.mr(verbs.AccessLocalWrite, MROptions{}).Rereg(ReregOptions{Memory: make([]byte, 4096)})
	},
	FeatureIOVA: func(p *prober) error {
		p.mr(verbs.AccessLocalWrite, MROptions{IOVA: 1 << 20})
		return nil
	},
	FeatureAdvice: func(p *prober) error {
		access := verbs.AccessLocalWrite
		if p.c.dev.Attr.ODP.General&odpSupport != 0 {
			access |= verbs.AccessOnDemand
		}
		mr := p.mr(access, MROptions{})
		return mr.pd.Advise(verbs.AdvisePrefetch, true, mr.SGE(0, 4096))
	},
	FeatureDMABuf: func(p *prober) error {
		if p.c.Driver() == "mlx5" && p.c.dev.Attr.ODP.General&odpSupport == 0 {
			// It would take a file and then refuse, as it maps its pages like page faults
			// (mlx5r_odp_create_eq).
			return fmt.Errorf("the kernel's mlx5 needs an adapter with on-demand paging: %w", errors.ErrUnsupported)
		}
		mr, err := p.pd().RegisterDMABuf(-1, 0, 4096, 0, verbs.AccessLocalWrite)
		if !errors.Is(err, syscall.EBADF) { // EBADF means that only the file is refused
			mustCreate(p, mr, err)
		}
		return nil
	},
}

func mwType(typ verbs.MWType) func(*prober) error {
	return func(p *prober) error {
		mw, err := p.pd().AllocMW(typ)
		mustCreate(p, mw, err)
		return nil
	}
}
