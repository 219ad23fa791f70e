//go:build linux

package erdma

import (
	"errors"
	"fmt"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/lab/internal/pcidev"
)

// commands is the queue of commands, which take two to four units of 32 bytes, and that of their completions.
type commands struct {
	d *Device
	pcidev.Commands

	// Of the goroutine of commands, or of who has quiesced it:
	sq    pcidev.Ring
	taken uint16 // units of sq

	mu    sync.Mutex
	cq    pcidev.Ring // unmapped when there is no queue
	pi    uint32      // of cq
	armed bool
}

const (
	unit         = 32      // SQEBB_SIZE, and the size of completions and receives
	commandUnits = 4       // most of a command: the driver uses two on 6.1, and four later
	maxCommands  = 1 << 12 // units of the queue; the driver's has 512
)

// open maps the queues.
func (c *commands) open(sq, cq uint64, depth uint32) (err error) {
	if depth < commandUnits || depth&(depth-1) != 0 || depth > maxCommands {
		return fmt.Errorf("command queue of %d units: %w", depth, errInvalid)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken, c.pi, c.armed = 0, 0, false
	if c.sq, err = c.d.ring([]uint64{sq}, contiguous, 0, int(depth), unit); err == nil {
		c.cq, err = c.d.ring([]uint64{cq}, contiguous, 0, int(depth), unit)
	}
	return err
}

// contiguous is the size of the only block of a queue that the kernel has allocated.
const contiguous = 1 << 30

// close unmaps the queues. No command may be running.
func (c *commands) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sq.Unmap()
	c.cq.Unmap()
}

// Fields of a command's header, ERDMA_CMD_HDR_*: the number of units less one, the module and the opcode,
// and the index behind it.
const (
	hdrUnits  = 52 // three bits
	hdrModule = 24 // two bits
	hdrOpcode = 16 // eight bits
)

// executeAll executes the commands that the doorbell has shown.
func (c *commands) executeAll(int) {
	for c.sq.View != nil && !c.d.faults.Dead.Load() {
		n := uint16(c.d.register(regCommandDB)) - c.taken
		if n == 0 {
			return
		}
		var b [commandUnits * unit]byte
		copy(b[:], c.sq.At(uint32(c.taken)))
		h := le.Uint64(b[:])
		op := opcode{uint8(h >> hdrModule & 3), uint8(h >> hdrOpcode)}
		var r response
		size, err := n, fmt.Errorf("command at %d, header %016x, of %d units: %w", c.taken, h, n, errInvalid)
		if units := uint16(h>>hdrUnits&7) + 1; units >= 2 && units <= min(n, commandUnits) && uint32(n) <= c.sq.Count && uint16(h) == c.taken+units {
			for i := range units { // what an older driver lacks is zero
				copy(b[i*unit:], c.sq.At(uint32(c.taken+i)))
			}
			size, err = units, c.d.execute(op, b[:], &r)
		} // otherwise nothing tells where the next begins
		c.d.record("command %v %x: %v %x", op, b[8:], err, r)
		c.complete(uint32(c.taken), err, r)
		c.taken += size
	}
}

// response is what the completion of a command answers.
type response [2]uint64

// Bits of the header of a completion, ERDMA_CQE_HDR_*.
const (
	cqeOwner  = 1 << 31
	cqeOpcode = 16
	cqeType   = 8

	typeSend    = 0 // ERDMA_CQE_QTYPE_*
	typeRecv    = 1
	typeCommand = 2
)

// ownerBit is 1 in the first round, as the driver's memory is zero before it.
func ownerBit(r *pcidev.Ring, i uint32) uint32 { return (r.Round(i) ^ 1) << 31 }

// complete writes the completion of a command.
func (c *commands) complete(index uint32, err error, r response) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := ownerBit(&c.cq, c.pi) | typeCommand<<cqeType
	if err != nil {
		h |= 1
	}
	e := c.cq.At(c.pi)
	be.PutUint32(e[4:], index)
	for i, v := range r {
		be.PutUint32(e[8+8*i:], uint32(v))
		be.PutUint32(e[12+8*i:], uint32(v>>32))
	}
	c.cq.Word(c.pi, 0).Store(pcidev.BigEndian(h))
	c.pi++
	c.notify()
}

func (c *commands) notify() {
	if c.armed {
		c.armed = false
		c.d.event(0, 0, 0)
	}
}

// arm requests an event when there are completions behind an index (arm_cmdq_cq).
func (c *commands) arm(ci uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cq.View == nil {
		return
	}
	c.armed = true
	if pcidev.After(c.pi&pcidev.IndexMask, ci&pcidev.IndexMask) {
		c.notify()
	}
}

// opcode names a command: a module, CMDQ_SUBMOD_*, and an opcode in it.
type opcode struct{ module, op uint8 }

const (
	rdma   = 0
	common = 1
)

var handlers = map[opcode]func(*Device, []byte, *response) error{
	{rdma, 0}:   (*Device).queryDevice,
	{rdma, 1}:   (*Device).createQP,
	{rdma, 2}:   (*Device).destroyQP,
	{rdma, 3}:   (*Device).modifyQP,
	{rdma, 4}:   (*Device).createCQ,
	{rdma, 5}:   (*Device).destroyCQ,
	{rdma, 6}:   (*Device).reflush,
	{rdma, 8}:   (*Device).registerMR,
	{rdma, 9}:   (*Device).deregisterMR,
	{rdma, 14}:  (*Device).setGID,
	{rdma, 15}:  (*Device).createAH,
	{rdma, 16}:  (*Device).destroyAH,
	{rdma, 17}:  (*Device).queryQP,
	{common, 0}: (*Device).createEQ,
	{common, 1}: (*Device).destroyEQ,
	{common, 2}: (*Device).queryFirmware,
	{common, 3}: (*Device).configureMTU,
	{common, 4}: (*Device).getStats,
	{common, 5}: (*Device).configureDevice,
	{common, 8}: (*Device).allocDB,
	{common, 9}: (*Device).freeDB,
}

// firstRoCE is the first opcode of RoCE mode.
const firstRoCE = 14

// errInvalid is the error of a command that is refused. All have one status: nothing public lists others.
var errInvalid = errors.New("invalid argument")

// execute executes a command.
func (d *Device) execute(op opcode, b []byte, r *response) error {
	if _, ok := d.faults.Take(pcidev.FaultCommand); ok {
		return errors.New("injected fault")
	}
	run := handlers[op]
	if run == nil || op.module == rdma && op.op >= firstRoCE && !d.cfg.RoCE {
		return errors.ErrUnsupported
	}
	return run(d, b, r)
}

// Limits, as powers of two, which QUERY_DEVICE reports.
const (
	logCQEs  = 16
	logRecvs = 13
	logSends = 15 // units: ERDMA_MAX_SEND_WR requests of ERDMA_MAX_WQEBB_PER_SQE
	logMR    = 32 // bytes
	logMWs   = 10
	qpBlocks = 4 // of 1024 QPs, each of which takes some 100 KiB here

	maxQPs = 1024 * qpBlocks
	maxCQs = 2 * maxQPs
	maxMRs = 2 * maxQPs
	maxPDs = 128 << 10 // ERDMA_MAX_PD
)

// Capabilities, ERDMA_DEV_CAP_FLAGS_*.
const (
	capAtomic   = 1 << 7
	capTables   = 1 << 5 // tables of several levels, MTT_VA
	capExtendDB = 1 << 3
)

func (d *Device) queryDevice(_ []byte, r *response) error {
	r[0] = logCQEs<<40 | (capAtomic|capTables|capExtendDB)<<24 | logRecvs<<16 | logMR
	if d.cfg.RoCE {
		r[0] |= logGIDs<<48 | logAHs<<8
	}
	r[1] = dmaKey<<32 | qpBlocks<<16 | logMWs
	return nil
}

func (d *Device) queryFirmware(_ []byte, r *response) error {
	r[0] = 1<<16 | 2
	return nil
}

func (d *Device) configureMTU(b []byte, _ *response) error {
	if mtu := le.Uint32(b[8:]); mtu < 68 || mtu > 9978 { // of IPv4, and of virtio
		return fmt.Errorf("MTU %d: %w", mtu, errInvalid)
	}
	d.mtu = pathMTU(int(le.Uint32(b[8:])))
	return nil
}

// pathMTU returns the largest MTU of RDMA that fits the link's (ib_mtu_int_to_enum).
func pathMTU(mtu int) verbs.MTU {
	for m := verbs.MTU(5); m > 1; m-- {
		if m.Bytes() <= mtu {
			return m
		}
	}
	return 1
}

// defaultMTU is that of a link of 1500 bytes: the driver tells only of changes.
const defaultMTU = 3

// configureDevice takes the size of the driver's pages, in which the pages of doorbells are.
func (d *Device) configureDevice(b []byte, _ *response) error {
	if cfg := le.Uint32(b[8:]); cfg>>31 == 0 || cfg&31 != 12 {
		return fmt.Errorf("pages of 1<<%d bytes: %w", cfg&31, errInvalid)
	}
	return nil
}

func (d *Device) allocDB(b []byte, r *response) error {
	if le.Uint32(b[8:]) != 7 { // for sends, receives and CQs
		return errInvalid
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	sends, recvs, cqs, ok := d.pages.alloc()
	if !ok {
		return fmt.Errorf("no page of doorbells is free: %w", errInvalid)
	}
	r[0] = uint64(recvs)<<48 | uint64(cqs)<<32 | uint64(sends)
	return nil
}

func (d *Device) freeDB(b []byte, _ *response) error {
	recvs, sends, cqs := uint32(le.Uint16(b[12:])), uint32(le.Uint16(b[14:])), uint32(le.Uint16(b[18:]))
	for _, q := range d.qps.All() {
		if q.owner == owner(sends) {
			return fmt.Errorf("QP %d uses page %d of doorbells: %w", q.num, sends, errInvalid)
		}
	}
	for _, q := range d.cqs.All() {
		if q.owner == owner(sends) {
			return fmt.Errorf("CQ %d uses page %d of doorbells: %w", q.num, cqs, errInvalid)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.pages.free(sends, recvs, cqs) {
		return fmt.Errorf("pages %d, %d and %d of doorbells were not given out together: %w", sends, recvs, cqs, errInvalid)
	}
	return nil
}

// table returns the list of count blocks of a translation table. Of level 0 it is in the command: first,
// and more behind it. Of level 1 it is in memory at first. Of more levels that memory has the addresses of
// pages of the next level (erdma_create_mtt).
func (d *Device) table(level int, first uint64, more []byte, count int) ([]uint64, error) {
	const perPage = 4096 / 8
	if count <= 0 || count > maxBlocks {
		return nil, fmt.Errorf("%d blocks of %d: %w", count, maxBlocks, errInvalid)
	}
	if level == 0 {
		if count > 1+len(more)/8 {
			return nil, fmt.Errorf("%d blocks in a command: %w", count, errInvalid)
		}
		list := []uint64{first}
		for i := range count - 1 {
			list = append(list, le.Uint64(more[8*i:]))
		}
		return list, nil
	}
	sizes := []int{count} // of each level, the lowest first
	for len(sizes) < level {
		sizes = append(sizes, (sizes[len(sizes)-1]+perPage-1)/perPage)
	}
	list, err := d.readTable([]uint64{first}, sizes[level-1], true)
	for l := level - 2; l >= 0 && err == nil; l-- {
		list, err = d.readTable(list, sizes[l], false)
	}
	return list, err
}

// maxBlocks bounds the blocks of a table: enough for 16 GiB in small pages.
const maxBlocks = 1 << 22

// readTable reads n addresses from pages or, of the highest level, from one piece of memory.
func (d *Device) readTable(pages []uint64, n int, whole bool) ([]uint64, error) {
	b := make([]byte, 8*n)
	for i, rest := 0, b; len(rest) > 0; i++ {
		size := len(rest)
		if !whole {
			size = min(size, 4096)
		}
		if err := d.mem.ReadAt(rest[:size], pages[i]); err != nil {
			return nil, err
		}
		rest = rest[size:]
	}
	list := make([]uint64, n)
	for i := range list {
		list[i] = le.Uint64(b[8*i:])
	}
	return list, nil
}
