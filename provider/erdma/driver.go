// Package erdma drives the queues of Alibaba Cloud's elastic RDMA adapters (the kernel's erdma).
//
//	Post ──► request in units of 32 bytes ──► doorbell record ──► register of the device, mapped
//	                                                                        │
//	Poll ◄── owner bit ◄── CQE in the ring ◄─────────────────────────── adapter
//
// All queues are memory of the process that the kernel pins. No uAPI describes them: the layouts
// follow the kernel's drivers/infiniband/hw/erdma/erdma_hw.h, with the kernel's name beside each
// field, and tests compare them with rdma-core's liberdma. Requests and receives are little-endian,
// completions big-endian. A doorbell is a store to a page of the device that is mapped into the
// process, so posting, polling and arming make no system call.
//
// Adapters are in iWARP mode, in which the kernel's iWARP connection manager connects QPs, or in RoCE
// v2 mode. Both have RC alone for programs: the kernel has no address handles for them
// (create_user_ah), without which there are no datagrams. Requests have up to 6 segments, receives
// one. There are no SRQs, no memory windows and so nothing to invalidate locally, and CQs keep their
// size.
//
// Poll checks what the device writes: a completion names a QP by its number and a request by the unit
// at which it begins, and Poll drops it if no such request is in flight.
package erdma

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// Driver is the [provider.Driver] for erdma.
type Driver struct{}

var _ provider.Driver = Driver{}

func (Driver) Name() string { return "erdma" }
func (Driver) ID() uint32   { return abi.RDMA_DRIVER_ERDMA }

// Limits that the kernel does not report (erdma_verbs.h).
const (
	maxSendSGE = 6               // ERDMA_MAX_SEND_SGE
	maxRecvSGE = 1               // ERDMA_MAX_RECV_SGE
	maxInline  = 16 * maxSendSGE // ERDMA_MAX_INLINE
	maxSends   = 8192            // ERDMA_MAX_SEND_WR
	maxRecvs   = 1 << 15         // of a queue: the device counts to 1<<16, and must tell a full queue from an empty one
	minCQ      = 64              // as liberdma (erdma_create_cq)
)

// hardwarePage is the adapter's page size, whatever the processor's is (ERDMA_HW_PAGE_SIZE).
const hardwarePage = 4096

// Places of registers in their pages (rdma-core's providers/erdma/erdma_hw.h).
const (
	sendRegister = 128 // ERDMA_SQDB_SIZE
	sendSharers  = 32  // ERDMA_SDB_ALLOC_QPN_MASK, plus one: QPs whose numbers differ by this much share a register
	recvRegister = 32  // ERDMA_RQDB_SPACE_SIZE
	recvSharers  = 128 // ERDMA_RDB_ALLOC_QPN_MASK, plus one
	cqRegister   = 8   // ERDMA_CQDB_SIZE

	// A context may have an entry of the page of send registers for all its QPs.
	entryKind = 1 // ERDMA_SDB_ENTRY, of sdb_type
	perEntry  = 2 // ERDMA_NSDB_PER_ENTRY
)

// GetContext implements [provider.Driver].
func (Driver) GetContext(dev *provider.Device, get func(provider.UHW) error) (provider.Context, error) {
	if !mmap.OrdersDevice {
		return nil, fmt.Errorf("erdma supports amd64 and arm64 only: %w", errors.ErrUnsupported)
	}
	c := &context{dev: dev, records: provider.Records{Size: provider.MinRecord}}
	if err := get(provider.UHW{Out: mmap.Bytes(&c.resp)}); errors.Is(err, syscall.EPERM) {
		return nil, fmt.Errorf("%w: firmware without ALLOC_DB has doorbells only for programs with CAP_SYS_RAWIO (alloc_db_resources)", err)
	} else if err != nil {
		return nil, err
	}
	if r := &c.resp; r.SdbType == entryKind && r.SdbOffset >= hardwarePage/sendRegister/perEntry {
		return nil, fmt.Errorf("the kernel names entry %d of a page with %d", r.SdbOffset, hardwarePage/sendRegister/perEntry)
	}
	for _, p := range []struct {
		page   **mmap.Region
		offset uint64
	}{{&c.sends, c.resp.Sdb}, {&c.recvs, c.resp.Rdb}, {&c.cqs, c.resp.Cdb}} {
		var err error
		if *p.page, err = mmap.Map(dev.FD, int64(p.offset), os.Getpagesize()); err != nil {
			c.Release()
			return nil, err
		}
	}
	return c, nil
}

// ImportContext implements [provider.Driver]. The kernel's erdma has no QUERY_CONTEXT, and nothing else
// names the pages of registers.
func (Driver) ImportContext(*provider.Device, func(provider.UHW) error) (provider.Context, error) {
	return nil, fmt.Errorf("the kernel's erdma does not tell where the registers of another context are: %w", errors.ErrUnsupported)
}

// context is an open device.
type context struct {
	dev     *provider.Device
	resp    abi.ErdmaUrespAllocCtx
	sends   *mmap.Region // pages of registers
	recvs   *mmap.Region
	cqs     *mmap.Region
	records provider.Records
	qps     table
}

// Release implements [provider.Object].
func (c *context) Release() {
	for _, r := range []*mmap.Region{c.sends, c.recvs, c.cqs} {
		r.Close()
	}
	c.records.Close()
}

// MaxInline implements [provider.InlineLimiter].
func (c *context) MaxInline() int { return maxInline }

// MaxSGE implements [provider.SGELimiter]. The kernel reports the smaller one.
func (c *context) MaxSGE() (send, recv int) { return maxSendSGE, maxRecvSGE }

// AllocPD adds no driver's part.
func (c *context) AllocPD(alloc func(provider.UHW) error) (provider.Object, error) {
	return nil, alloc(provider.UHW{})
}

// RegisterMR adds no driver's part.
func (c *context) RegisterMR(_ *provider.MRInit, register func(provider.UHW) error) (provider.Object, error) {
	return nil, register(provider.UHW{})
}

// CreateAH implements [provider.Context].
func (c *context) CreateAH(*provider.AHInit, func(provider.UHW) error) (uint32, provider.Object, error) {
	return 0, nil, fmt.Errorf("the kernel's erdma has no address handles for programs: %w", errors.ErrUnsupported)
}

// CreateSRQ implements [provider.Context].
func (c *context) CreateSRQ(*provider.SRQInit, func(provider.UHW) (provider.SRQInfo, error)) (provider.RecvQueue, error) {
	return nil, fmt.Errorf("erdma has no SRQs: %w", errors.ErrUnsupported)
}

// register returns the register at an offset of a page.
func register(r *mmap.Region, offset uint32) *uint64 {
	return &mmap.Slice[uint64](r.Bytes(), int(offset), 1)[0]
}

// queuePair has what the queues of a QP share.
type queuePair struct {
	ctx    *context
	num    uint32
	buf    *mmap.Buffer // the units of sends, and from a page of the adapter on the receives
	record []byte       // doorbell records: of sends, and of receives
	send   *sendQueue
	recv   *recvQueue
	sendCQ *completionQueue
	recvCQ *completionQueue
	open   int         // queues that have not been released
	late   *time.Timer // calls flushLate
}

// flushTime is how long the device may take to flush the requests of a QP that has failed.
const flushTime = time.Second

// Offsets of the doorbell records (init_user_qp).
const (
	sendRecord = 0
	recvRecord = 8
)

// CreateQP makes a QP. The kernel makes queues of maxUnits units for each request and of one for each
// receive, rounded up to powers of two (erdma_create_qp), and none of nothing.
func (c *context) CreateQP(init *provider.QPInit, create func(provider.UHW) (provider.QPInfo, error)) (provider.SendQueue, provider.RecvQueue, error) {
	if init.Type != verbs.RC {
		return nil, nil, fmt.Errorf("erdma has no QPs of type %v: %w", init.Type, errors.ErrUnsupported)
	}
	sendCQ, okSend := init.SendCQ.(*completionQueue)
	recvCQ, okRecv := init.RecvCQ.(*completionQueue)
	if !okSend || !okRecv || init.SRQ != nil {
		return nil, nil, fmt.Errorf("CQ of another driver, or an SRQ: %w", syscall.EINVAL)
	}
	want := &init.Cap
	if want.MaxSendWR > maxSends || want.MaxRecvWR > maxRecvs || want.MaxSendSGE > maxSendSGE || want.MaxRecvSGE > maxRecvSGE || want.MaxInline > maxInline {
		return nil, nil, syscall.EINVAL // uverbs explains it
	}
	want.MaxSendWR, want.MaxRecvWR = provider.RoundUp(want.MaxSendWR), provider.RoundUp(want.MaxRecvWR)
	units, recvs := want.MaxSendWR*maxUnits, want.MaxRecvWR
	at := (units*unit + hardwarePage - 1) &^ (hardwarePage - 1) // of the receives
	p := &queuePair{ctx: c, sendCQ: sendCQ, recvCQ: recvCQ}
	fail := func(err error) (provider.SendQueue, provider.RecvQueue, error) {
		p.free()
		return nil, nil, err
	}
	var err error
	if p.buf, err = mmap.NewBuffer(at+recvs*unit, mmap.BufferOptions{}); err != nil {
		return fail(err)
	}
	if p.record, err = c.records.Get(); err != nil {
		return fail(err)
	}
	req := abi.ErdmaUreqCreateQp{DbRecordVa: mmap.Addr(p.record), QbufVa: p.buf.Addr(), QbufLen: uint32(at + recvs*unit)}
	var resp abi.ErdmaUrespCreateQp
	info, err := create(provider.UHW{In: mmap.Bytes(&req), Out: mmap.Bytes(&resp), Pins: pinsOfQP(units*unit, at, recvs*unit)})
	if err != nil {
		return fail(err)
	}
	if r := &resp; int(r.NumSqe) != units || int(r.NumRqe) != recvs || int(r.RqOffset) != at || r.QpId != info.QPNum || info.QPNum>>numberBits != 0 {
		return fail(fmt.Errorf("the kernel made QP %d of %d units and %d receives at %#x, and QP %d of %d, %d and %#x was expected",
			r.QpId, r.NumSqe, r.NumRqe, r.RqOffset, info.QPNum, units, recvs, at))
	}
	p.num, p.open = info.QPNum, 2
	offset := p.num % sendSharers * sendRegister
	if c.resp.SdbType == entryKind {
		offset = c.resp.SdbOffset * perEntry * sendRegister
	}
	base := unsafe.Pointer(unsafe.SliceData(p.buf.Bytes()))
	p.send = newSendQueue(p, base, register(c.sends, offset), init, info)
	p.recv = newRecvQueue(p, unsafe.Add(base, at), register(c.recvs, p.num%recvSharers*recvRegister), init, info)
	p.late = time.AfterFunc(flushTime, p.flushLate)
	p.late.Stop()
	c.qps.set(p.num, p)
	return p.send, p.recv, nil
}

// pinsOfQP returns the locked memory of a QP: the kernel pins both queues apart (init_user_qp).
func pinsOfQP(sends, at, recvs int) int {
	return int(sys.WholePages(uint64(sends))) + provider.Pins(at%os.Getpagesize()+recvs)
}

// release frees the QP when both queues have been released.
func (p *queuePair) release() {
	if p.open--; p.open > 0 {
		return
	}
	p.late.Stop()
	p.ctx.qps.set(p.num, nil)
	p.clean() // flushLate has ended, or finds that the QP has
	p.free()
}

// fail takes note that the QP is in the error state.
func (p *queuePair) fail() {
	p.recv.refusing.Or(refusesFailed)
	if p.send.refusing.Or(refusesFailed)&refusesFailed == 0 {
		p.late.Reset(flushTime)
	}
}

// flushLate completes the requests that the device leaves: it flushes what it finds when the QP fails, and
// the program may have posted more before it knew.
func (p *queuePair) flushLate() {
	send := p.flushLateOf(&p.send.Gate, p.sendCQ, p.send.takeLate)
	recv := p.flushLateOf(&p.recv.Gate, p.recvCQ, p.recv.takeAll)
	if send || recv {
		p.late.Reset(flushTime)
	}
}

// flushLateOf is flushLate of a queue, and reports whether to call it again: the device's completions come
// first, and the program has not polled them.
func (p *queuePair) flushLateOf(g *provider.Gate, cq *completionQueue, take func() []verbs.WC) (again bool) {
	if !g.SingleThreaded { // nothing is posted there any more
		g.Lock()
		defer g.Unlock()
	}
	n := 0
	cq.AddBefore(func() (wcs []verbs.WC) {
		cq.Exclude()
		defer cq.Allow()
		switch {
		case p.ctx.qps.get(p.num) != p || p.send.refusing.Load()&refusesFailed == 0:
		case cq.holds(p.num):
			again = true
		default:
			wcs = take()
		}
		n = len(wcs)
		return wcs
	})
	if n > 0 {
		cq.notify()
	}
	return again
}

// clean removes the QP's completions from its CQs. The device adds no more.
func (p *queuePair) clean() {
	p.sendCQ.drop(p.num)
	if p.recvCQ != p.sendCQ {
		p.recvCQ.drop(p.num)
	}
}

// free frees the memory of the QP, as far as it has any.
func (p *queuePair) free() {
	p.ctx.records.Put(p.record)
	p.buf.Close()
}
