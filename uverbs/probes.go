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
var uncalled = []string{
	"CQ ignoring overruns", "CQ timestamps", "DMA handles", "QP rate limit", "XRC domain", "completion counters", "device clock",
	"device memory", "flow actions", "flow counters", "flow steering", "implicit on-demand paging", "port speed query",
	"receive indirection tables", "tag matching SRQ", "work queues",
}

var probes = map[string]func(*prober) error{
	"RC":                       qpType(verbs.RC),
	"UC":                       qpType(verbs.UC),
	"UD":                       qpType(verbs.UD),
	"raw packet QP":            qpType(abi.IB_UVERBS_QPT_RAW_PACKET),
	"driver QP":                qpType(abi.IB_UVERBS_QPT_DRIVER),
	"MW type 1":                mwType(verbs.MWType1),
	"MW type 2":                mwType(verbs.MWType2),
	"FLUSH":                    capability(abi.IB_UVERBS_DEVICE_FLUSH_GLOBAL),
	"persistent FLUSH":         capability(abi.IB_UVERBS_DEVICE_FLUSH_PERSISTENT),
	"ATOMIC_WRITE":             capability(abi.IB_UVERBS_DEVICE_ATOMIC_WRITE),
	"LOCAL_INV, SEND_WITH_INV": capability(abi.IB_UVERBS_DEVICE_MEM_MGT_EXTENSIONS),
	"atomics":                  attribute(func(a *verbs.DeviceAttr) bool { return a.AtomicCap != verbs.AtomicNone }),
	"P_Keys": func(p *prober) error {
		_, err := p.c.PKeyIndex(1, 0xffff) // every port with a table has this key
		return err
	},
	"on-demand paging": func(p *prober) error {
		p.mr(verbs.AccessOnDemand|verbs.AccessLocalWrite, MROptions{})
		return nil
	},
	"SRQ": func(p *prober) error {
		p.srq()
		return nil
	},
	"SRQ resize": func(p *prober) error { return p.srq().Resize(2) },
	"address handles": func(p *prober) error {
		pd := p.pd()
		gid, err := p.c.FindGID(1, anyAddr)
		if err != nil {
			return err
		}
		ah, err := pd.CreateAH(verbs.AddressVector{Global: true, DGID: gid.GID, SGIDIndex: uint8(gid.Index), HopLimit: 1, Port: 1})
		mustCreate(p, ah, err)
		return nil
	},
	"multicast": func(p *prober) error {
		qp, group := p.qp(verbs.UD), verbs.GID{0xff, 0x0e, 15: 1}
		const lid = 0xc000 // the first for multicast, of which the kernel wants one on InfiniBand (is_valid_mcast_lid)
		if err := qp.AttachMulticast(group, lid); err != nil {
			return err
		}
		return qp.DetachMulticast(group, lid)
	},
	"CQ resize":     func(p *prober) error { return p.cq().Resize(2) },
	"CQ moderation": func(p *prober) error { return p.cq().Moderate(1, 1) },
	"MR rereg, access": func(p *prober) error {
		all := verbs.AccessAll &^ verbs.AccessRemoteAtomic
		return p.mr(verbs.AccessLocalWrite, MROptions{}).Rereg(ReregOptions{Access: &all})
	},
	"MR rereg, PD": func(p *prober) error {
		mr, pd := p.mr(verbs.AccessLocalWrite, MROptions{}), p.pd()
		p.closers = append(p.closers, mr.Close) // before the PD it moves to
		return mr.Rereg(ReregOptions{PD: pd})
	},
	"MR rereg, memory": func(p *prober) error {
		return p.mr(verbs.AccessLocalWrite, MROptions{}).Rereg(ReregOptions{Memory: make([]byte, 4096)})
	},
	"MR IOVA": func(p *prober) error {
		p.mr(verbs.AccessLocalWrite, MROptions{IOVA: 1 << 20})
		return nil
	},
	"MR advice": func(p *prober) error {
		access := verbs.AccessLocalWrite
		if p.c.dev.Attr.ODP.General&odpSupport != 0 {
			access |= verbs.AccessOnDemand
		}
		mr := p.mr(access, MROptions{})
		return mr.pd.Advise(verbs.AdvisePrefetch, true, mr.SGE(0, 4096))
	},
	"DMA-BUF MR": func(p *prober) error {
		if p.c.Driver() == "mlx5" && p.c.dev.Attr.ODP.General&odpSupport == 0 {
			// It would take a file and then refuse, as it maps its pages like page faults (mlx5r_odp_create_eq).
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
