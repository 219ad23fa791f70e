// Package mlx5 drives the queues of NVIDIA's ConnectX adapters (mlx5_core and mlx5_ib), from
// ConnectX-4 and BlueField on.
//
//	Post ──► WQE in blocks of 64 bytes ──► doorbell record ──► register of the device, mapped
//	                                                                     │
//	Poll ◄── owner bit ◄── CQE in the ring ◄──────────────────────── ConnectX
//
// All queues are memory of the process that the kernel pins. Their contents are big-endian and no
// uAPI: the layouts here are those of the kernel's include/linux/mlx5/{qp.h,device.h,cq.h}, each
// field beside its name there, compared in tests with rdma-core's libmlx5. A doorbell is a store to
// a page of the device (a UAR) that is mapped into the process, so posting, polling and arming make
// no system call.
//
// Poll checks the device's writes: a completion names a queue by a user index
// and a request by a counter, and is dropped if no such request is in flight.
//
// DC and XRC, raw packets and flow steering, tag matching, and striding receive queues fail with an
// error that matches [errors.ErrUnsupported].
package mlx5

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// Driver is the [provider.Driver] for mlx5.
type Driver struct {
	static  bool // registers are those that the kernel hands out, as before Linux 5.7: for tests
	cqeSize int  // bytes of a CQE; 0 is as the processor's cache lines are: for tests
}

var _ provider.Driver = Driver{}

func (Driver) Name() string { return "mlx5" }
func (Driver) ID() uint32   { return abi.RDMA_DRIVER_MLX5 }

// Registers that GetContext requests for a kernel that hands them out by itself, as libmlx5 does
// (MLX5_TOTAL_UUARS and MLX5_NUM_LOW_LAT_UUARS).
const (
	totalRegisters  = 16
	lowLatRegisters = 4
)

// GetContext implements [provider.Driver]. Kernels that do not know a capability of the request
// ignore it, and the answer shows what they do.
func (d Driver) GetContext(dev *provider.Device, get func(provider.UHW) error) (provider.Context, error) {
	if err := supported(); err != nil {
		return nil, err
	}
	req := abi.Mlx5IbAllocUcontextReqV2{
		TotalNumBfregs: totalRegisters, NumLowLatencyBfregs: lowLatRegisters, MaxCqeVersion: cqeVersion,
		LibCaps: abi.MLX5_LIB_CAP_4K_UAR | abi.MLX5_LIB_CAP_DYN_UAR,
	}
	if d.static {
		req.LibCaps &^= abi.MLX5_LIB_CAP_DYN_UAR
	}
	c := &context{dev: dev, driver: d}
	if err := get(provider.UHW{In: mmap.Bytes(&req), Out: mmap.Bytes(&c.resp)}); err != nil {
		return nil, err
	}
	return c.setup()
}

// ImportContext implements [provider.Driver]. The kernel's context is the other process's, so its
// answer tells which kind of registers that has chosen.
func (d Driver) ImportContext(dev *provider.Device, query func(provider.UHW) error) (provider.Context, error) {
	if err := supported(); err != nil {
		return nil, err
	}
	c := &context{dev: dev, driver: d}
	if err := query(provider.UHW{Out: mmap.Bytes(&c.resp), OutAttr: abi.MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX}); err != nil {
		return nil, err
	}
	return c.setup()
}

func supported() error {
	if !mmap.OrdersDevice {
		return fmt.Errorf("mlx5 supports amd64 and arm64 only: %w", errors.ErrUnsupported)
	}
	return nil
}

// cqeVersion is the version of CQEs that name a QP by its user index.
const cqeVersion = 1

// context is an open device.
type context struct {
	dev     *provider.Device
	driver  Driver
	resp    abi.Mlx5IbAllocUcontextResp
	regs    registers
	records recordPool
	qps     table[queuePair] // by user index
	ahs     table[addressHandle]

	bounds bounds
}

// bounds are the limits of the device.
type bounds struct {
	sendBytes  int // of a send request
	sendBlocks int // of a send queue
	recvBytes  int // of a receive
	recvs      int // of a receive queue
	srqRecvs   int
	cqeSize    int
}

func (c *context) setup() (provider.Context, error) {
	r := &c.resp
	if r.CqeVersion != cqeVersion {
		return nil, fmt.Errorf("the adapter writes CQEs of version %d, and mlx5 reads version %d (ConnectX-4 and later): %w", r.CqeVersion, cqeVersion, errors.ErrUnsupported)
	}
	c.bounds = bounds{
		sendBytes: min(int(r.MaxSqDescSz), maxUnits*unit), sendBlocks: min(int(r.MaxSendWqebb), maxEntries),
		recvBytes: int(r.MaxRqDescSz), recvs: min(int(r.MaxRecvWr), maxEntries), srqRecvs: min(int(r.MaxSrqRecvWr), maxEntries) - 1, // one ends the list
		cqeSize: c.driver.cqeSize,
	}
	line := int(r.CacheLineSize)
	if c.bounds.cqeSize == 0 {
		// A CQE of a whole cache line is not written to while its neighbour is read.
		c.bounds.cqeSize = smallCQE
		if line >= largeCQE {
			c.bounds.cqeSize = largeCQE
		}
	}
	c.records.size = max(minRecord, roundUp(line))
	if c.records.size > os.Getpagesize() {
		return nil, fmt.Errorf("cache lines of %d bytes: %w", line, errors.ErrUnsupported)
	}
	if err := c.regs.setup(c); err != nil {
		c.regs.close()
		return nil, err
	}
	return c, nil
}

// maxEntries bounds the entries of a queue: indexes have 16 bits, and the numbers of those that are
// posted and taken must differ.
const maxEntries = 1 << 15

// Release implements [provider.Object].
func (c *context) Release() {
	c.regs.close()
	c.records.close()
}

// MaxInline implements [provider.InlineLimiter]. Datagrams have room for less by an address vector.
func (c *context) MaxInline() int { return c.bounds.sendBytes - sendHead(verbs.RC) - inlineHead }

// AllocPD requests an answer, which the kernel requires. The number in it is for direct commands.
func (c *context) AllocPD(alloc func(provider.UHW) error) (provider.Object, error) {
	var resp abi.Mlx5IbAllocPdResp
	return nil, alloc(provider.UHW{Out: mmap.Bytes(&resp)})
}

// RegisterMR adds no driver's part.
func (c *context) RegisterMR(_ *provider.MRInit, register func(provider.UHW) error) (provider.Object, error) {
	return nil, register(provider.UHW{})
}

// pins returns how much locked memory a queue of n bytes takes at most. The kernel pins, and
// counts, whole pages for each buffer (ib_umem_get), so that queues which shared one would count it
// twice. Only the page of doorbell records counts once for all of them (mlx5_ib_db_map_user).
func pins(n int) int {
	return int(sys.WholePages(uint64(n))) + os.Getpagesize()
}

// roundUp rounds up to a power of two.
func roundUp(n int) int {
	if n <= 1 {
		return 1
	}
	return 1 << bits.Len(uint(n-1))
}

// queuePair is what the queues of a QP share.
type queuePair struct {
	ctx    *context
	typ    verbs.QPType
	num    uint32
	index  uint32 // the user index, by which CQEs name the QP
	buf    *mmap.Buffer
	record []byte // word 0 counts receives, word 1 blocks of sends
	send   *sendQueue
	recv   *recvQueue // its own, or an SRQ
	sendCQ *completionQueue
	recvCQ *completionQueue
	reg    *register
	port   atomic.Uint32
	open   int // queues that are not released
}

// Words of doorbell records, MLX5_RCV_DBR and MLX5_SND_DBR.
const (
	recvWord = 0
	sendWord = 4
)

// sendHead returns the bytes of a request before its data.
func sendHead(t verbs.QPType) int {
	if t == verbs.UD {
		return ctrlSize + avSize
	}
	return ctrlSize + remoteSize
}

// sendSize returns the bytes of the longest request, in whole blocks. Atomics, with a data segment,
// fill one. A UMR request may be longer, and then takes the room of several. (libmlx5 adds room for
// one to each request.)
func sendSize(t verbs.QPType, sges, inline int) int {
	data := segmentSize * sges
	if inline > 0 {
		data = max(data, (inlineHead+inline+unit-1)&^(unit-1))
	}
	return (sendHead(t) + data + block - 1) &^ (block - 1)
}

// CreateQP makes a QP with one buffer for its queues, that of receives first.
func (c *context) CreateQP(init *provider.QPInit, create func(provider.UHW) (provider.QPInfo, error)) (provider.SendQueue, provider.RecvQueue, error) {
	if init.Type != verbs.RC && init.Type != verbs.UC && init.Type != verbs.UD {
		return nil, nil, fmt.Errorf("QP type %v: %w", init.Type, errors.ErrUnsupported)
	}
	sendCQ, okSend := init.SendCQ.(*completionQueue)
	recvCQ, okRecv := init.RecvCQ.(*completionQueue)
	srq, okSRQ := init.SRQ.(*recvQueue)
	if !okSend || !okRecv || init.SRQ != nil && !okSRQ {
		return nil, nil, fmt.Errorf("CQ or SRQ of another driver: %w", syscall.EINVAL)
	}
	sends, recvs, err := c.planQP(init)
	if err != nil {
		return nil, nil, err
	}
	p := &queuePair{ctx: c, typ: init.Type, sendCQ: sendCQ, recvCQ: recvCQ}
	fail := func(err error) (provider.SendQueue, provider.RecvQueue, error) {
		p.free()
		return nil, nil, err
	}
	recvBytes, length := recvs.entries*recvs.stride, recvs.entries*recvs.stride+sends.entries*sends.stride
	req := abi.Mlx5IbCreateQp{SqWqeCount: uint32(sends.entries), RqWqeCount: uint32(recvs.entries)}
	if recvs.entries > 0 {
		req.RqWqeShift = uint32(bits.TrailingZeros(uint(recvs.stride)))
	}
	var mem []byte
	if length > 0 {
		if p.buf, err = mmap.NewBuffer(length, mmap.BufferOptions{}); err != nil {
			return fail(err)
		}
		mem, req.BufAddr = p.buf.Bytes(), p.buf.Addr()
	}
	if p.record, err = c.records.get(); err != nil {
		return fail(err)
	}
	req.DbAddr = mmap.Addr(p.record)
	// Nothing finds the QP by its index before it is complete.
	if p.index, err = c.qps.reserve(maxUserIndex); err != nil {
		return fail(err)
	}
	req.Uidx = p.index
	p.reg = c.regs.get(&req)
	var resp abi.Mlx5IbCreateQpResp
	info, err := create(provider.UHW{In: mmap.Bytes(&req), Out: mmap.Bytes(&resp), Pins: pins(length)})
	if err != nil {
		return fail(err)
	}
	if p.reg == nil {
		if p.reg, err = c.regs.named(resp.BfregIndex); err != nil {
			return fail(err)
		}
	}
	p.num, p.open = info.QPNum, 1
	p.send = newSendQueue(p, mem[recvBytes:], sends, init, info)
	if p.recv = srq; srq == nil {
		p.recv, p.open = newRecvQueue(p, mem[:recvBytes], recvs, init, info), 2
	}
	c.qps.set(p.index, p)
	if srq != nil {
		return p.send, nil, nil
	}
	return p.send, p.recv, nil
}

// plan is the size of a queue: how many entries of how many bytes, and how many requests it takes,
// one less than entries if the program asked for less: a CQ for as many as it asked for has one
// completion less than entries.
type plan struct{ entries, stride, requests int }

// planQP determines the sizes of a QP's queues, and raises those in init.
func (c *context) planQP(init *provider.QPInit) (sends, recvs plan, err error) {
	// The first two keep the sum from overflowing.
	if init.Cap.MaxSendSGE > maxUnits || init.Cap.MaxInline > c.bounds.sendBytes ||
		sendHead(init.Type)+max(segmentSize*init.Cap.MaxSendSGE, inlineHead+init.Cap.MaxInline) > c.bounds.sendBytes {
		return sends, recvs, fmt.Errorf("MaxSendSGE %d and MaxInline %d make requests that are longer than the adapter's %d bytes: %w",
			init.Cap.MaxSendSGE, init.Cap.MaxInline, c.bounds.sendBytes, syscall.EINVAL)
	}
	size := sendSize(init.Type, init.Cap.MaxSendSGE, init.Cap.MaxInline)
	sends.stride = block
	if n := init.Cap.MaxSendWR; n > 0 {
		most := c.bounds.sendBlocks / (size / block)
		if n > most {
			return sends, recvs, fmt.Errorf("MaxSendWR %d of at most %d, which are of %d bytes each: %w", n, most, size, syscall.EINVAL)
		}
		sends.entries = roundUp(n * (size / block))
		if init.Type != verbs.UD {
			sends.entries = max(sends.entries, roundUp(bindSize/block)) // for one UMR request
		}
		init.Cap.MaxSendWR = sends.entries / (size / block)
		sends.requests = max(n, init.Cap.MaxSendWR-1)
	}
	if init.SRQ != nil || init.Cap.MaxRecvWR == 0 {
		return sends, recvs, nil // the kernel demands sizes of 0
	}
	recvs.stride = roundUp(segmentSize * max(init.Cap.MaxRecvSGE, 1))
	if n := init.Cap.MaxRecvWR; n > c.bounds.recvs || init.Cap.MaxRecvSGE > maxUnits || recvs.stride > c.bounds.recvBytes {
		return sends, recvs, fmt.Errorf("MaxRecvWR %d of at most %d, or MaxRecvSGE %d of more than %d bytes: %w",
			n, c.bounds.recvs, init.Cap.MaxRecvSGE, c.bounds.recvBytes, syscall.EINVAL)
	}
	// The queue is at least a block long, where that of sends begins.
	recvs.entries = roundUp(max(init.Cap.MaxRecvWR, block/recvs.stride))
	recvs.requests = max(init.Cap.MaxRecvWR, recvs.entries-1)
	init.Cap.MaxRecvWR = recvs.entries
	return sends, recvs, nil
}

// release is called by Release of each queue.
func (p *queuePair) release() {
	if p.open--; p.open == 0 {
		p.clean()
		p.free()
	}
}

// clean removes the QP's completions from its CQs, to which the device adds no more.
func (p *queuePair) clean() {
	p.sendCQ.drop(p)
	if p.recvCQ != p.sendCQ {
		p.recvCQ.drop(p)
	}
}

// free frees what the QP has.
func (p *queuePair) free() {
	p.ctx.qps.remove(p.index)
	p.ctx.regs.put(p.reg)
	p.ctx.records.put(p.record)
	p.buf.Close()
}
