package uverbs

import (
	"errors"
	"fmt"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/internal/unix"
	"github.com/goverbs/verbs/mmap"
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

func srqType(typ uint64) func(*prober) error {
	return func(p *prober) error {
		pd, cq := p.pd(), p.cq()
		var handle, wr, sge, zero uint32
		wr, sge = 1, 1
		var id uint64
		var resp [64]byte // for the driver's part
		return p.ioctl(abi.UVERBS_OBJECT_SRQ, abi.UVERBS_METHOD_SRQ_CREATE,
			sys.New(abi.UVERBS_ATTR_CREATE_SRQ_HANDLE, &handle),
			sys.Handle(abi.UVERBS_ATTR_CREATE_SRQ_PD_HANDLE, pd.handle),
			sys.Handle(abi.UVERBS_ATTR_CREATE_SRQ_CQ_HANDLE, cq.handle),
			sys.In(abi.UVERBS_ATTR_CREATE_SRQ_USER_HANDLE, &id),
			sys.In(abi.UVERBS_ATTR_CREATE_SRQ_MAX_WR, &wr),
			sys.In(abi.UVERBS_ATTR_CREATE_SRQ_MAX_SGE, &sge),
			sys.In(abi.UVERBS_ATTR_CREATE_SRQ_LIMIT, &zero),
			sys.In(abi.UVERBS_ATTR_CREATE_SRQ_MAX_NUM_TAGS, &wr),
			sys.Const(abi.UVERBS_ATTR_CREATE_SRQ_TYPE, typ),
			sys.Out(abi.UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, &wr),
			sys.Out(abi.UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, &sge),
			sys.OutBytes(abi.UVERBS_ATTR_UHW_OUT, resp[:]))
	}
}

// cqFlags makes a CQ with flags that no driver of this package uses.
func cqFlags(flags uint64) func(*prober) error {
	return func(p *prober) error {
		var handle, got, zero uint32
		depth, id := uint32(1), uint64(0)
		var resp [64]byte // for the driver's part
		return p.ioctl(abi.UVERBS_OBJECT_CQ, abi.UVERBS_METHOD_CQ_CREATE,
			sys.New(abi.UVERBS_ATTR_CREATE_CQ_HANDLE, &handle),
			sys.In(abi.UVERBS_ATTR_CREATE_CQ_CQE, &depth),
			sys.In(abi.UVERBS_ATTR_CREATE_CQ_USER_HANDLE, &id),
			sys.In(abi.UVERBS_ATTR_CREATE_CQ_COMP_VECTOR, &zero),
			sys.Const(abi.UVERBS_ATTR_CREATE_CQ_FLAGS, flags),
			sys.Out(abi.UVERBS_ATTR_CREATE_CQ_RESP_CQE, &got),
			sys.OutBytes(abi.UVERBS_ATTR_UHW_OUT, resp[:]))
	}
}

const extended = abi.IB_USER_VERBS_CMD_FLAG_EXTENDED

var probes = map[Feature]func(*prober) error{
	FeatureRC:              qpType(verbs.RC),
	FeatureUC:              qpType(verbs.UC),
	FeatureUD:              qpType(verbs.UD),
	FeatureRawPacketQP:     qpType(abi.IB_UVERBS_QPT_RAW_PACKET),
	FeatureDriverQP:        qpType(abi.IB_UVERBS_QPT_DRIVER),
	FeatureMWType1:         mwType(verbs.MWType1),
	FeatureMWType2:         mwType(verbs.MWType2),
	FeatureTagMatchingSRQ:  srqType(abi.IB_UVERBS_SRQT_TM),
	FeatureCQTimestamps:    cqFlags(abi.IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION),
	FeatureCQOverrun:       cqFlags(abi.IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN),
	FeatureFlush:           capability(abi.IB_UVERBS_DEVICE_FLUSH_GLOBAL),
	FeaturePersistentFlush: capability(abi.IB_UVERBS_DEVICE_FLUSH_PERSISTENT),
	FeatureAtomicWrite:     capability(abi.IB_UVERBS_DEVICE_ATOMIC_WRITE),
	FeatureInvalidate:      capability(abi.IB_UVERBS_DEVICE_MEM_MGT_EXTENSIONS),
	FeatureAtomics:         attribute(func(a *verbs.DeviceAttr) bool { return a.AtomicCap != verbs.AtomicNone }),
	FeatureDeviceClock:     attribute(func(a *verbs.DeviceAttr) bool { return a.CoreClock != 0 }),
	FeaturePKeys: func(p *prober) error {
		_, err := p.c.PKeyIndex(1, 0xffff) // every port with a table has this key
		return err
	},
	FeatureOnDemandPaging: func(p *prober) error {
		p.mr(verbs.AccessOnDemand|verbs.AccessLocalWrite, MROptions{})
		return nil
	},
	FeatureImplicitOnDemandPaging: func(p *prober) error {
		pd := p.pd()
		req := abi.IbUverbsRegMr{Length: ^uint64(0), PdHandle: pd.handle, AccessFlags: uint32(verbs.AccessOnDemand | verbs.AccessLocalWrite)}
		var resp abi.IbUverbsRegMrResp
		err := p.call(abi.IB_USER_VERBS_CMD_REG_MR, mmap.Bytes(&req), mmap.Bytes(&resp))
		if err == unix.EINVAL && p.c.dev.Attr.ODP.General&odpImplicit == 0 {
			err = fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
		}
		return err
	},
	FeatureSRQ: func(p *prober) error {
		p.srq()
		return nil
	},
	FeatureSRQResize: func(p *prober) error { return p.srq().Resize(2) },
	FeatureAddressHandles: func(p *prober) error {
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
		if err := qp.AttachMulticast(group, 0); err != nil {
			return err
		}
		return qp.DetachMulticast(group, 0)
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
		mr, err := p.pd().RegisterDMABuf(-1, 0, 4096, 0, verbs.AccessLocalWrite)
		if !errors.Is(err, unix.EBADF) { // EBADF means that only the file is refused
			mustCreate(p, mr, err)
		}
		return nil
	},
	FeatureXRCDomain: func(p *prober) error {
		req := abi.IbUverbsOpenXrcd{Fd: ^uint32(0), Oflags: unix.O_CREAT}
		var resp abi.IbUverbsOpenXrcdResp
		return p.call(abi.IB_USER_VERBS_CMD_OPEN_XRCD, mmap.Bytes(&req), mmap.Bytes(&resp))
	},
	FeatureQPRateLimit: func(p *prober) error {
		qp := p.qp(verbs.RC)
		const rateLimit = 1 << 25 // enum ib_qp_attr_mask
		req := abi.IbUverbsExModifyQp{Base: abi.IbUverbsModifyQp{QpHandle: qp.handle, AttrMask: rateLimit}, RateLimit: 1000}
		return p.call(abi.IB_USER_VERBS_EX_CMD_MODIFY_QP|extended, mmap.Bytes(&req), nil)
	},
	FeatureFlowActions: func(p *prober) error {
		var handle uint32
		return p.ioctl(abi.UVERBS_OBJECT_FLOW_ACTION, abi.UVERBS_METHOD_FLOW_ACTION_ESP_CREATE,
			sys.New(abi.UVERBS_ATTR_CREATE_FLOW_ACTION_ESP_HANDLE, &handle))
	},
	FeatureCompletionCounters: func(p *prober) error {
		// The headers of Linux 7.2 have no such object yet.
		const object, create, newHandle = abi.UVERBS_OBJECT_DMABUF + 1, 0, 0
		var handle uint32
		return p.ioctl(object, create, sys.New(newHandle, &handle))
	},
	FeatureFlowSteering: func(p *prober) error {
		qp := p.qp(verbs.RC)
		req := abi.IbUverbsCreateFlow{QpHandle: qp.handle, FlowAttr: abi.IbUverbsFlowAttr{Port: 1}}
		var resp abi.IbUverbsCreateFlowResp
		return p.call(abi.IB_USER_VERBS_EX_CMD_CREATE_FLOW|extended, mmap.Bytes(&req), mmap.Bytes(&resp))
	},
	FeatureWorkQueues: func(p *prober) error {
		pd, cq := p.pd(), p.cq()
		req := abi.IbUverbsExCreateWq{PdHandle: pd.handle, CqHandle: cq.handle, MaxWr: 1, MaxSge: 1}
		var resp abi.IbUverbsExCreateWqResp
		return p.call(abi.IB_USER_VERBS_EX_CMD_CREATE_WQ|extended, mmap.Bytes(&req), mmap.Bytes(&resp))
	},
	FeatureReceiveIndirection: func(p *prober) error {
		req := struct {
			abi.IbUverbsExCreateRwqIndTable
			handle, _ uint32
		}{}
		var resp abi.IbUverbsExCreateRwqIndTableResp
		return p.call(abi.IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL|extended, mmap.Bytes(&req), mmap.Bytes(&resp))
	},
	FeatureDeviceMemory: func(p *prober) error {
		var handle uint32
		length, align := uint64(64), uint32(0)
		return p.ioctl(abi.UVERBS_OBJECT_DM, abi.UVERBS_METHOD_DM_ALLOC,
			sys.New(abi.UVERBS_ATTR_ALLOC_DM_HANDLE, &handle),
			sys.In(abi.UVERBS_ATTR_ALLOC_DM_LENGTH, &length),
			sys.In(abi.UVERBS_ATTR_ALLOC_DM_ALIGNMENT, &align))
	},
	FeatureDMAHandles: func(p *prober) error {
		var handle uint32
		return p.ioctl(abi.UVERBS_OBJECT_DMAH, abi.UVERBS_METHOD_DMAH_ALLOC, sys.New(abi.UVERBS_ATTR_ALLOC_DMAH_HANDLE, &handle))
	},
	FeatureFlowCounters: func(p *prober) error {
		var handle uint32
		return p.ioctl(abi.UVERBS_OBJECT_COUNTERS, abi.UVERBS_METHOD_COUNTERS_CREATE, sys.New(abi.UVERBS_ATTR_CREATE_COUNTERS_HANDLE, &handle))
	},
	FeatureContextQuery: func(p *prober) error {
		var vectors uint32
		return p.ioctl(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_CONTEXT, sys.Out(abi.UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS, &vectors))
	},
	FeaturePortSpeedQuery: func(p *prober) error {
		var speed uint64
		return p.ioctl(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_PORT_SPEED,
			sys.Const(abi.UVERBS_ATTR_QUERY_PORT_SPEED_PORT_NUM, 1), sys.Out(abi.UVERBS_ATTR_QUERY_PORT_SPEED_RESP, &speed))
	},
}

func mwType(typ verbs.MWType) func(*prober) error {
	return func(p *prober) error {
		mw, err := p.pd().AllocMW(typ)
		mustCreate(p, mw, err)
		return nil
	}
}
