package uverbs

import (
	"cmp"
	"errors"
	"fmt"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
)

// attribute probes a feature that the device's attributes show.
func attribute(has func(*verbs.DeviceAttr) bool) func(*prober) error {
	return func(p *prober) error {
		if !has(must(p.c.QueryDevice())) {
			return fmt.Errorf("not among the device's capabilities: %w", errors.ErrUnsupported)
		}
		return nil
	}
}

func capability(bits uint64) func(*prober) error {
	return attribute(func(a *verbs.DeviceAttr) bool { return a.CapFlags&bits != 0 })
}

// opcode probes an opcode of send requests. No driver posts a request of so many SGEs, and one that
// lacks the opcode says that first.
func (p *prober) opcode(o verbs.Opcode) error {
	_, err := p.qp(verbs.RC).PostSend(verbs.SendWR{Opcode: o, SGL: make([]verbs.SGE, 1<<10)})
	if errors.Is(err, verbs.ErrOpcode) {
		return fmt.Errorf("%w: %w", err, errors.ErrUnsupported)
	}
	return nil
}

func qpType(typ verbs.QPType) func(*prober) error {
	return func(p *prober) error {
		p.qp(typ)
		return nil
	}
}

// uncalled has the features that this package has no calls for, even if the kernel's driver has
// them.
var uncalled = []Feature{
	"CQ ignoring overruns", "DMA handles", "QP rate limit", "XRC domain", "completion counters",
	"device memory", "flow actions", "flow counters", "flow steering", "implicit on-demand paging", "port speed query",
	"receive indirection tables", "tag matching SRQ", "work queues",
}

var probes = map[Feature]func(*prober) error{
	FeatureRC:              qpType(verbs.RC),
	FeatureUC:              qpType(verbs.UC),
	FeatureUD:              qpType(verbs.UD),
	FeatureRawPacket:       qpType(abi.IB_UVERBS_QPT_RAW_PACKET),
	FeatureDC:              qpType(verbs.DCI),
	FeatureMWType1:         mwType(verbs.MWType1),
	FeatureMWType2:         mwType(verbs.MWType2),
	FeatureFlush:           capability(abi.IB_UVERBS_DEVICE_FLUSH_GLOBAL),
	FeaturePersistentFlush: capability(abi.IB_UVERBS_DEVICE_FLUSH_PERSISTENT),
	FeatureAtomicWrite:     capability(abi.IB_UVERBS_DEVICE_ATOMIC_WRITE),
	FeatureInvalidate: func(p *prober) error {
		// The kernel's own QPs may have what programs' QPs have not, as on erdma.
		return cmp.Or(capability(abi.IB_UVERBS_DEVICE_MEM_MGT_EXTENSIONS)(p), p.opcode(verbs.OpLocalInv))
	},
	FeatureAtomics:    attribute(func(a *verbs.DeviceAttr) bool { return a.AtomicCap != verbs.AtomicNone }),
	FeatureImmediates: func(p *prober) error { return p.opcode(verbs.OpSendImm) },
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
		gid := must(p.c.FindGID(1, anyAddr))
		closing(p, must(pd.CreateAH(verbs.AddressVector{Global: true, DGID: gid.GID, SGIDIndex: uint8(gid.Index), HopLimit: 1, Port: 1})))
		return nil
	},
	FeatureMulticast: func(p *prober) error {
		qp, group := p.qp(verbs.UD), verbs.GID{0xff, 0x0e, 15: 1}
		const lid = 0xc000 // the first for multicast; on InfiniBand the kernel wants one (is_valid_mcast_lid)
		if err := qp.AttachMulticast(group, lid); err != nil {
			return err
		}
		return qp.DetachMulticast(group, lid)
	},
	FeatureTimestamps: func(p *prober) error {
		closing(p, must(p.c.CreateCQ(CQOptions{Depth: 1, Timestamps: verbs.TimestampCycles})))
		return nil
	},
	FeatureClock: func(p *prober) error {
		_, err := p.c.Clock()
		return err
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
		p.mr(verbs.AccessLocalWrite, MROptions{IOVA: new(uint64(1 << 20))})
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
			// It would take a file and then refuse: it maps the pages as for page faults
			// (mlx5r_odp_create_eq).
			return fmt.Errorf("the kernel's mlx5 needs an adapter with on-demand paging: %w", errors.ErrUnsupported)
		}
		mr, err := p.pd().RegisterDMABuf(-1, 0, 4096, 0, verbs.AccessLocalWrite)
		if !errors.Is(err, syscall.EBADF) { // EBADF means that only the file is refused
			closing(p, must(mr, err))
		}
		return nil
	},
	FeatureImport: func(p *prober) error {
		closing(p, must(ImportContext(p.c.FD())))
		return nil
	},
}

func mwType(typ verbs.MWType) func(*prober) error {
	return func(p *prober) error {
		closing(p, must(p.pd().AllocMW(typ)))
		return nil
	}
}
