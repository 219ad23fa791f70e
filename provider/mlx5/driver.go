// Package mlx5 drives the queues of NVIDIA's ConnectX adapters (mlx5_core and mlx5_ib), from
// ConnectX-4 and BlueField on.
//
//	Post ──► WQE in blocks of 64 bytes ──► doorbell record ──► register of the device, mapped
//	                                                                     │
//	Poll ◄── owner bit ◄── CQE in the ring ◄──────────────────────── ConnectX
//
// All queues are memory of the process that the kernel pins. Their contents are big-endian, and no
// uAPI describes them: the layouts follow the kernel's include/linux/mlx5/{qp.h,device.h,cq.h},
// with the kernel's name beside each field, and tests compare them with rdma-core's libmlx5. A
// doorbell is a store to a page of the device (a UAR) that is mapped into the process, so posting,
// polling and arming make no system call.
//
// Poll checks what the device writes: a completion names a queue by its user index and a request by
// a counter, and Poll drops it if no such request is in flight.
//
// XRC, the streams of DC, raw packets and flow steering, tag matching, and striding receive queues
// fail with an error that matches [errors.ErrUnsupported].
package mlx5

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// Driver is the [provider.Driver] for mlx5.
type Driver struct {
	static  bool // for tests: let the kernel hand out the registers, as before Linux 5.7
	cqeSize int  // for tests: bytes of a CQE; 0 follows the processor's cache lines
}

var _ provider.Driver = Driver{}

func (Driver) Name() string { return "mlx5" }
func (Driver) ID() uint32   { return abi.RDMA_DRIVER_MLX5 }

// Registers that GetContext requests, as libmlx5 does (MLX5_TOTAL_UUARS, MLX5_NUM_LOW_LAT_UUARS),
// from a kernel that hands them out itself.
const (
	totalRegisters  = 16
	lowLatRegisters = 4
)

// GetContext implements [provider.Driver]. Kernels ignore a capability in the request that they do
// not know; the answer shows what they do.
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

// ImportContext implements [provider.Driver]. The other process made the kernel's context, whose
// answer tells which kind of registers that process chose.
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
	records provider.Records
	qps     table[queuePair] // by user index
	ahs     table[addressHandle]
	clock   clock

	bounds bounds
}

// bounds are the device's limits.
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
	}
	// A CQE that fills its cache line is never written while a processor reads its neighbour.
	line := int(r.CacheLineSize)
	c.bounds.cqeSize = cmp.Or(c.driver.cqeSize, min(max(smallCQE, provider.RoundUp(line)), largeCQE))
	c.records.Size = max(provider.MinRecord, provider.RoundUp(line))
	if c.records.Size > os.Getpagesize() {
		return nil, fmt.Errorf("cache lines of %d bytes: %w", line, errors.ErrUnsupported)
	}
	if err := c.regs.setup(c); err != nil {
		c.regs.close()
		return nil, err
	}
	return c, nil
}

// maxEntries bounds the entries of a queue: the device's counters have 16 bits (wqe_counter), and
// must tell a full queue from an empty one.
const maxEntries = 1 << 15

// Release implements [provider.Object].
func (c *context) Release() {
	c.regs.close()
	c.records.Close()
	c.clock.close()
}

// MaxInline implements [provider.InlineLimiter]. Datagrams take less: an address vector needs room.
func (c *context) MaxInline() int { return c.bounds.sendBytes - sendHead(verbs.RC) - inlineHead }

// AllocPD requests an answer, because the kernel requires it (mlx5_ib_alloc_pd), and ignores it:
// the number is for direct commands.
func (c *context) AllocPD(alloc func(provider.UHW) error) (provider.Object, error) {
	var resp abi.Mlx5IbAllocPdResp
	return nil, alloc(provider.UHW{Out: mmap.Bytes(&resp)})
}

// RegisterMR adds no driver's part.
func (c *context) RegisterMR(_ *provider.MRInit, register func(provider.UHW) error) (provider.Object, error) {
	return nil, register(provider.UHW{})
}

// queuePair has what the queues of a QP share.
type queuePair struct {
	ctx    *context
	typ    verbs.QPType
	num    uint32
	index  uint32 // user index, by which CQEs name the QP
	buf    *mmap.Buffer
	record []byte // doorbell record, which counts receives and the blocks of sends
	send   *sendQueue
	recv   *recvQueue // its own, or an SRQ
	sendCQ *completionQueue
	recvCQ *completionQueue
	reg    *register
	port   atomic.Uint32
	open   int // queues that have not been released

	offer uint32        // extensions of the adapter (ECE)
	ece   atomic.Uint32 // these, or those that the peer has as well
}

// Offsets of the words of doorbell records, MLX5_RCV_DBR and MLX5_SND_DBR.
const (
	recvWord = 0
	sendWord = 4
)

// sendHead returns the length of a request before its data.
func sendHead(t verbs.QPType) int {
	switch t {
	case verbs.UD:
		return ctrlSize + avSize
	case verbs.DCI:
		return dcHead
	}
	return ctrlSize + remoteSize
}

// sendSize returns the length of the longest request, in whole blocks. An atomic with its data
// segment fills one. A UMR request may be longer, and then takes the room of several; libmlx5 makes
// all requests that long.
func sendSize(t verbs.QPType, sges, inline int) int {
	data := segmentSize * sges
	if inline > 0 {
		data = max(data, (inlineHead+inline+unit-1)&^(unit-1))
	}
	return (sendHead(t) + data + block - 1) &^ (block - 1)
}

// CreateQP makes a QP. One buffer holds both queues, the receive queue first, as the kernel expects
// (_create_user_qp).
func (c *context) CreateQP(init *provider.QPInit, create func(provider.UHW) (provider.QPInfo, error)) (provider.SendQueue, provider.RecvQueue, error) {
	switch init.Type {
	case verbs.RC, verbs.UC, verbs.UD, verbs.DCI, verbs.DCT:
	default:
		return nil, nil, fmt.Errorf("QP type %v: %w", init.Type, errors.ErrUnsupported)
	}
	sendCQ, okSend := init.SendCQ.(*completionQueue)
	recvCQ, okRecv := init.RecvCQ.(*completionQueue)
	srq, okSRQ := init.SRQ.(*recvQueue)
	if !okSend || !okRecv || init.SRQ != nil && !okSRQ {
		return nil, nil, fmt.Errorf("CQ or SRQ of another driver: %w", syscall.EINVAL)
	}
	if (sendCQ.stamps == verbs.TimestampRealTime) != (recvCQ.stamps == verbs.TimestampRealTime) { // get_qp_ts_format
		return nil, nil, fmt.Errorf("one CQ has TimestampRealTime and the other has not: %w", errors.ErrUnsupported)
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
	req := abi.Mlx5IbCreateQp{SqWqeCount: uint32(sends.entries), RqWqeCount: uint32(recvs.entries), EceOptions: askECE}
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
	if p.record, err = c.records.Get(); err != nil {
		return fail(err)
	}
	req.DbAddr = mmap.Addr(p.record)
	// Poll finds the QP by its index only when set has added it, complete.
	if p.index, err = c.qps.reserve(maxUserIndex); err != nil {
		return fail(err)
	}
	req.Uidx = p.index
	if p.reg = noRegister; init.Type != verbs.DCT {
		p.reg = c.regs.get(&req)
	}
	setDC(&req, init)
	var resp abi.Mlx5IbCreateQpResp
	info, err := create(provider.UHW{In: mmap.Bytes(&req), Out: mmap.Bytes(&resp), Pins: provider.Pins(length)})
	if err != nil {
		return fail(err)
	}
	if p.reg == nil {
		if p.reg, err = c.regs.named(resp.BfregIndex); err != nil {
			return fail(err)
		}
	}
	p.num, p.open = info.QPNum, 1
	p.offer = resp.EceOptions
	p.ece.Store(p.offer)
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

// plan is the size of a queue. requests is one less than the entries, unless the program asked for
// all of them: a CQ of the Depth that the program asked for may have one completion less than that.
type plan struct{ entries, stride, requests int }

// planQP plans the queues of a QP, and raises the sizes in init to what they get.
func (c *context) planQP(init *provider.QPInit) (sends, recvs plan, err error) {
	if init.Type == verbs.DCT { // it has an SRQ
		init.Cap = verbs.QPCap{}
		return sends, recvs, nil
	}
	// The first two conditions keep the sum from overflowing.
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
		sends.entries = provider.RoundUp(n * (size / block))
		if init.Type != verbs.UD {
			sends.entries = max(sends.entries, provider.RoundUp(bindSize/block)) // for one UMR request
		}
		init.Cap.MaxSendWR = sends.entries / (size / block)
		sends.requests = max(n, init.Cap.MaxSendWR-1)
	}
	if init.SRQ != nil || init.Cap.MaxRecvWR == 0 {
		return sends, recvs, nil // the kernel demands sizes of 0 (create_user_qp)
	}
	recvs.stride = provider.RoundUp(segmentSize * max(init.Cap.MaxRecvSGE, 1))
	if n := init.Cap.MaxRecvWR; n > c.bounds.recvs || init.Cap.MaxRecvSGE > maxUnits || recvs.stride > c.bounds.recvBytes {
		return sends, recvs, fmt.Errorf("MaxRecvWR %d of at most %d, or MaxRecvSGE %d of more than %d bytes: %w",
			n, c.bounds.recvs, init.Cap.MaxRecvSGE, c.bounds.recvBytes, syscall.EINVAL)
	}
	// The send queue behind it begins at a block.
	recvs.entries = provider.RoundUp(max(init.Cap.MaxRecvWR, block/recvs.stride))
	recvs.requests = max(init.Cap.MaxRecvWR, recvs.entries-1)
	init.Cap.MaxRecvWR = recvs.entries
	return sends, recvs, nil
}

// release frees the QP when both queues have been released.
func (p *queuePair) release() {
	if p.open--; p.open == 0 {
		p.clean()
		p.free()
	}
}

// clean removes the QP's completions from its CQs. The device adds no more.
func (p *queuePair) clean() {
	p.sendCQ.drop(p)
	if p.recvCQ != p.sendCQ {
		p.recvCQ.drop(p)
	}
}

// free frees the memory, the index and the register of the QP, as far as it has them.
func (p *queuePair) free() {
	p.ctx.qps.remove(p.index)
	p.ctx.regs.put(p.reg)
	p.ctx.records.Put(p.record)
	p.buf.Close()
}
