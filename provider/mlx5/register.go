package mlx5

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"unsafe"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
)

// Offsets in a UAR, a page of the device with registers (include/linux/mlx5/{cq.h,driver.h}).
const (
	uarSize      = 4096
	uarCQ        = 0x20  // MLX5_CQ_DOORBELL
	uarSend      = 0x800 // MLX5_BF_OFFSET: the first register of send queues
	perUAR       = 4     // MLX5_BFREGS_PER_UAR
	usablePerUAR = 2     // MLX5_NON_FP_BFREGS_PER_UAR: the others are the kernel's
)

// register is a doorbell register of send queues, to which the first 8 bytes of a request are
// stored. A register with halves (BlueFlame) belongs to one QP and takes whole requests, which the
// device then need not read from memory. The halves alternate, so that a request can be stored to
// one while the previous store to the other is on its way.
//
// Stores of 8 bytes need no lock even in a register that QPs share: each is one transaction. The
// lock of a QP's send queue, and the flush before its release, order the stores of the QP.
type register struct {
	mem    unsafe.Pointer
	half   uintptr // bytes of a half; 0 without BlueFlame
	offset uintptr // of the next half
	page   uint32  // the kernel's number of the UAR, if this driver allocated it
}

// uar is a page of the processor that maps one or more UARs.
type uar struct {
	region *mmap.Region
	mem    unsafe.Pointer // the first UAR
	handle uint32         // of the kernel's object, if this driver allocated it
	page   uint32         // the kernel's number of the first UAR
}

// registers are the doorbell registers of a context. Usually the driver allocates pages of them as
// objects of the kernel. In a context that an older program made, and this one imported, the kernel
// has allocated static pages with the context and names the register of each QP.
type registers struct {
	ctx *context
	cq  *uint64 // arms CQs

	static []uar     // allocated with the context
	plain  *register // shared by QPs without BlueFlame

	blueFlame bool
	mu        sync.Mutex
	owned     []uar // allocated by this driver
	free      []*register
}

// maxBlueFlame bounds the registers with halves, which are scarce on the adapter. Further QPs share
// the plain one.
const maxBlueFlame = 16

// shutUpBlueFlame is libmlx5's variable, which turns BlueFlame off unless it is empty or 0.
const shutUpBlueFlame = "MLX5_SHUT_UP_BF"

func (r *registers) setup(c *context) error {
	r.ctx = c
	if c.resp.TotBfregs != 0 {
		return r.mapStatic()
	}
	// CQs, and QPs without BlueFlame, need stores of 8 bytes only, and so no write combining.
	u, err := r.allocate(abi.MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC)
	if err != nil {
		return fmt.Errorf("allocate a page of registers: %w", err)
	}
	if u.page > math.MaxUint16 { // the width of the field in struct mlx5_ib_create_cq
		return fmt.Errorf("page %d of registers: CQs can have one below %d: %w", u.page, math.MaxUint16+1, errors.ErrUnsupported)
	}
	r.cq = (*uint64)(unsafe.Add(u.mem, uarCQ))
	r.plain = &register{mem: unsafe.Add(u.mem, uarSend), page: u.page}
	// The kernel returns a size if write combining works on this machine (mlx5_wc_support_get).
	size := int(c.resp.BfRegSize)
	off := os.Getenv(shutUpBlueFlame)
	r.blueFlame = (off == "" || off == "0") && size >= 2*block && size%(2*block) == 0 && uarSend+usablePerUAR*size <= uarSize
	return nil
}

// perPage returns how many UARs a page of the processor has.
func (r *registers) perPage() uint32 { return max(r.ctx.resp.NumUarsPerPage, 1) }

// mapStatic maps the pages that the kernel allocated. An offset that has only the number of a page
// is command 0 of mlx5_ib_mmap, MLX5_IB_MMAP_REGULAR_PAGE.
func (r *registers) mapStatic() error {
	size := os.Getpagesize()
	if r.perPage()*uarSize > uint32(size) {
		return fmt.Errorf("%d UARs in a page of %d bytes", r.perPage(), size)
	}
	pages := int(r.ctx.resp.TotBfregs / usablePerUAR / r.perPage())
	if pages == 0 {
		return fmt.Errorf("a context of %d registers has no page of them", r.ctx.resp.TotBfregs)
	}
	for i := range pages {
		region, err := mmap.Map(r.ctx.dev.FD, int64(i)*int64(size), size)
		if err != nil {
			return fmt.Errorf("map page %d of %d of registers: %w", i, pages, err)
		}
		r.static = append(r.static, uar{region: region, mem: unsafe.Pointer(unsafe.SliceData(region.Bytes()))})
	}
	r.cq = (*uint64)(unsafe.Add(r.static[0].mem, uarCQ))
	return nil
}

// named returns the register that the kernel named for a QP: one of perUAR in a UAR. It has no
// halves: other QPs may share it, even of other processes if the context is imported.
func (r *registers) named(index uint32) (*register, error) {
	n, in := index/perUAR, index%perUAR
	page := n / r.perPage()
	off := uint64(n%r.perPage())*uarSize + uarSend + uint64(in)*uint64(r.ctx.resp.BfRegSize)
	if uint64(page) >= uint64(len(r.static)) || off%8 != 0 || off+8 > uint64(len(r.static[page].region.Bytes())) {
		return nil, fmt.Errorf("the kernel names register %d, of %d pages", index, len(r.static))
	}
	return &register{mem: unsafe.Add(r.static[page].mem, uintptr(off))}, nil
}

// allocate allocates a page of UARs, and maps it.
func (r *registers) allocate(kind uint64) (*uar, error) {
	f := sys.File{FD: r.ctx.dev.FD, Driver: r.ctx.dev.Driver}
	var u uar
	var offset uint64
	var length uint32
	err := f.Ioctl(sys.Call{Object: abi.MLX5_IB_OBJECT_UAR, Method: abi.MLX5_IB_METHOD_UAR_OBJ_ALLOC, Attrs: []sys.Attr{
		sys.New(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, &u.handle),
		sys.Const(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE, kind),
		sys.Out(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, &offset),
		sys.Out(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, &length),
		sys.Out(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, &u.page),
	}})
	if err != nil {
		return nil, err
	}
	// The UARs of a page of the processor are allocated together (alloc_uars_page).
	if n := r.perPage(); u.page%n != 0 || n*uarSize > length {
		r.destroy(&u)
		return nil, fmt.Errorf("UAR %d is not the first of %d in a page of %d bytes", u.page, n, length)
	}
	if u.region, err = mmap.Map(r.ctx.dev.FD, int64(offset), int(length)); err != nil {
		r.destroy(&u)
		return nil, err
	}
	u.mem = unsafe.Pointer(unsafe.SliceData(u.region.Bytes()))
	r.owned = append(r.owned, u)
	return &u, nil
}

// destroy unmaps a page of allocate, and destroys it: it would outlive a context whose file another
// process has open.
func (r *registers) destroy(u *uar) {
	u.region.Close()
	f := sys.File{FD: r.ctx.dev.FD, Driver: r.ctx.dev.Driver}
	f.Ioctl(sys.Call{Object: abi.MLX5_IB_OBJECT_UAR, Method: abi.MLX5_IB_METHOD_UAR_OBJ_DESTROY, Attrs: []sys.Attr{
		sys.Handle(abi.MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE, u.handle),
	}})
}

// get returns a register for a QP and writes its page to the request. It returns nil if the kernel
// will name one.
func (r *registers) get(req *abi.Mlx5IbCreateQp) *register {
	if r.static != nil {
		return nil
	}
	reg := r.plain
	if r.blueFlame {
		reg = r.getBlueFlame()
	}
	req.Flags |= abi.MLX5_QP_FLAG_UAR_PAGE_INDEX
	req.BfregIndex = reg.page
	return reg
}

// getBlueFlame returns a register with halves, or the plain one if none is left.
func (r *registers) getBlueFlame() *register {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.free) == 0 && (len(r.owned)-1)*int(r.perPage())*usablePerUAR < maxBlueFlame {
		u, err := r.allocate(abi.MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF)
		if err != nil { // the adapter has few, or write combining does not work here
			return r.plain
		}
		r.free = r.halves(u)
	}
	if len(r.free) == 0 {
		return r.plain
	}
	n := len(r.free) - 1
	reg := r.free[n]
	r.free = r.free[:n]
	return reg
}

// halves returns the registers with halves of all UARs in a page of the processor.
func (r *registers) halves(u *uar) (list []*register) {
	size := uintptr(r.ctx.resp.BfRegSize)
	for n := range r.perPage() {
		for i := range uintptr(usablePerUAR) {
			list = append(list, &register{mem: unsafe.Add(u.mem, uintptr(n)*uarSize+uarSend+i*size), half: size / 2, page: u.page + n})
		}
	}
	return list
}

// put takes back the register, if any, of a destroyed QP.
func (r *registers) put(reg *register) {
	if reg == nil || reg.half == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free = append(r.free, reg)
}

// createCQ writes the page of the CQs' register to a request.
func (r *registers) createCQ(req *abi.Mlx5IbCreateCq) {
	if r.static == nil {
		req.Flags |= abi.MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX
		req.UarPageIndex = uint16(r.plain.page)
	}
}

func (r *registers) close() {
	for i := range r.static {
		r.static[i].region.Close()
	}
	for i := range r.owned {
		r.destroy(&r.owned[i])
	}
}
