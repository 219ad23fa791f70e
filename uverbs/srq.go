package uverbs

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"weak"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// SRQ is a receive queue that several QPs share. It is closed after them.
type SRQ struct {
	pd     *PD
	obj    *object
	num    uint32
	handle uint32

	queue provider.RecvQueue
}

// SRQOptions contains options for [PD.CreateSRQ].
type SRQOptions struct {
	MaxWR  int // minimum size; zero is 64
	MaxSGE int // of a work request; zero is 2
	Limit  int // see [SRQ.SetLimit]
}

// CreateSRQ makes a shared receive queue (ibv_create_srq(3)).
func (p *PD) CreateSRQ(opt SRQOptions) (*SRQ, error) {
	const op = "create SRQ in"
	if err := p.obj.enter(op); err != nil {
		return nil, err
	}
	defer p.obj.exit()
	if min(opt.MaxWR, opt.MaxSGE, opt.Limit) < 0 || max(opt.MaxWR, opt.MaxSGE, opt.Limit) > math.MaxInt32 {
		return nil, p.obj.fail(op, fmt.Errorf("%+v: %w", opt, verbs.ErrRange))
	}
	init := &provider.SRQInit{PD: p.driverPD, MaxWR: cmp.Or(opt.MaxWR, 64), MaxSGE: cmp.Or(opt.MaxSGE, 2)}
	core, id := p.ctx.contextCore, p.ctx.lastID.Add(1)
	s := &SRQ{pd: p}
	created := false
	queue, err := core.driverContext.CreateSRQ(init, func(uhw provider.UHW) (provider.SRQInfo, error) {
		maxWR, maxSGE, limit := uint32(init.MaxWR), uint32(init.MaxSGE), uint32(opt.Limit)
		var gotWR, gotSGE, num uint32
		err := core.file.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_SRQ, Method: abi.UVERBS_METHOD_SRQ_CREATE, Attrs: []sys.Attr{
			sys.New(abi.UVERBS_ATTR_CREATE_SRQ_HANDLE, &s.handle),
			sys.Handle(abi.UVERBS_ATTR_CREATE_SRQ_PD_HANDLE, p.handle),
			sys.In(abi.UVERBS_ATTR_CREATE_SRQ_USER_HANDLE, &id),
			sys.In(abi.UVERBS_ATTR_CREATE_SRQ_MAX_WR, &maxWR),
			sys.In(abi.UVERBS_ATTR_CREATE_SRQ_MAX_SGE, &maxSGE),
			sys.In(abi.UVERBS_ATTR_CREATE_SRQ_LIMIT, &limit),
			sys.Const(abi.UVERBS_ATTR_CREATE_SRQ_TYPE, abi.IB_UVERBS_SRQT_BASIC),
			sys.FD(abi.UVERBS_ATTR_CREATE_SRQ_EVENT_FD, core.async.FD()),
			sys.Out(abi.UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, &gotWR),
			sys.Out(abi.UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, &gotSGE),
			sys.Out(abi.UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM, &num),
			sys.InBytes(abi.UVERBS_ATTR_UHW_IN, uhw.In),
			sys.OutBytes(abi.UVERBS_ATTR_UHW_OUT, uhw.Out),
		}})
		created = err == nil
		s.num = s.handle // the kernel numbers only SRQs of the XRC type
		return provider.SRQInfo{Handle: s.handle, MaxWR: int(gotWR), MaxSGE: int(gotSGE)}, explainPins(err, uint64(uhw.Pins))
	})
	handle := s.handle
	if err != nil {
		if created {
			core.destroy(kindSRQ, handle)
		}
		attr := &core.dev.Attr
		return nil, p.obj.failSize(op, err, "MaxSRQ", attr.MaxSRQ,
			limit{"MaxWR", cmp.Or(opt.MaxWR, 64), attr.MaxSRQWR}, limit{"MaxSGE", cmp.Or(opt.MaxSGE, 2), attr.MaxSRQSGE},
			limit{"Limit", opt.Limit, cmp.Or(opt.MaxWR, 64)})
	}
	s.queue = queue
	s.obj = newObject(p.obj.device, objectName{"SRQ %d", s.num}, func() error {
		if err := stopAndDestroy(func() error { return core.destroy(kindSRQ, handle) }, queue); err != nil {
			return err
		}
		core.registry.remove(id)
		return nil
	}, p.obj)
	core.register(id, entry{obj: s.obj, srq: weak.Make(s)})
	addCleanup(s, s.obj)
	if opt.Limit != 0 {
		if err := s.ensureLimit(opt.Limit); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// ensureLimit sets the limit of a new SRQ if its driver ignored it in CREATE, as mlx5_ib does.
func (s *SRQ) ensureLimit(n int) error {
	now, err := s.Query()
	if err == nil && now.Limit != n {
		err = s.SetLimit(n)
	}
	return err
}

// Resize changes the size to at least maxWR receives, and keeps those in the SRQ. After
// [verbs.ErrQueueFailed], PostRecv returns it too.
func (s *SRQ) Resize(maxWR int) error {
	const mask = 1 << 0 // enum ib_srq_attr_mask
	if maxWR < 0 || maxWR > math.MaxInt32 {
		return s.obj.fail("resize", rangeError("MaxWR", maxWR, 0, math.MaxInt32))
	}
	return s.modify("resize", func() limit { return limit{"MaxWR", maxWR, s.pd.ctx.dev.Attr.MaxSRQWR} }, func(modify func(abi.IbUverbsModifySrq, provider.UHW) error) error {
		return s.queue.Resize(maxWR, func(maxWR int, uhw provider.UHW) error {
			return modify(abi.IbUverbsModifySrq{AttrMask: mask, MaxWr: uint32(maxWR)}, uhw)
		})
	})
}

// SetLimit requests one [verbs.EventSRQLimitReached] at fewer than n receives. rxe, siw and package
// soft look when a message takes a receive: a queue that is low already has its event at the next
// message.
func (s *SRQ) SetLimit(n int) error {
	const mask = 1 << 1
	if n < 0 || n > math.MaxInt32 {
		return s.obj.fail("set limit of", rangeError("limit", n, 0, math.MaxInt32))
	}
	return s.modify("set limit of", func() limit { return limit{"limit", n, s.queue.Cap()} }, func(modify func(abi.IbUverbsModifySrq, provider.UHW) error) error {
		return s.queue.SetLimit(n, func(uhw provider.UHW) error {
			return modify(abi.IbUverbsModifySrq{AttrMask: mask, SrqLimit: uint32(n)}, uhw)
		})
	})
}

// modify modifies the SRQ by run, which adds the driver's part. size returns the changed size, for
// errors.
func (s *SRQ) modify(op string, size func() limit, run func(func(abi.IbUverbsModifySrq, provider.UHW) error) error) error {
	if err := s.obj.enter(op); err != nil {
		return err
	}
	defer s.obj.exit()
	err := run(func(req abi.IbUverbsModifySrq, uhw provider.UHW) error {
		req.SrqHandle = s.handle
		return s.pd.ctx.file.Invoke(abi.IB_USER_VERBS_CMD_MODIFY_SRQ, mmap.Bytes(&req), nil, uhw.In, uhw.Out)
	})
	if err != nil {
		return s.obj.failSize(op, err, "", 0, size())
	}
	return nil
}

// Cap returns the number of receives that the SRQ holds, at least the requested one.
func (s *SRQ) Cap() int { return s.queue.Cap() }

// SRQAttr contains the attributes of an SRQ.
type SRQAttr struct {
	MaxWR  int // size
	MaxSGE int // of a receive
	Limit  int // armed by [SRQ.SetLimit]; 0 after its event
}

// Query returns the SRQ's attributes (ibv_query_srq(3)).
func (s *SRQ) Query() (SRQAttr, error) {
	req := abi.IbUverbsQuerySrq{SrqHandle: s.handle}
	var resp abi.IbUverbsQuerySrqResp
	err := s.obj.do("query", func() error {
		return s.pd.ctx.file.Invoke(abi.IB_USER_VERBS_CMD_QUERY_SRQ, mmap.Bytes(&req), mmap.Bytes(&resp), nil, nil)
	})
	return SRQAttr{MaxWR: int(resp.MaxWr), MaxSGE: int(resp.MaxSge), Limit: int(resp.SrqLimit)}, err
}

// Close destroys the SRQ. It fails while QPs use it.
func (s *SRQ) Close() error {
	if s == nil {
		return verbs.ErrClosed
	}
	return s.obj.close()
}
