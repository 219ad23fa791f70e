//go:build linux

package mlx5

import (
	"errors"
	"maps"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
	"github.com/goverbs/verbs/providertest"
)

// uarKernel hands out UARs.
type uarKernel struct {
	left  int             // how many it has
	uars  map[uint32]bool // by handle
	last  uint32
	pages map[int64][]byte // by offset, which is the page's number times 4096
}

// ioctl answers methods on UARs.
func (f *uarKernel) ioctl(c *providertest.Call) error {
	if c.Object != abi.MLX5_IB_OBJECT_UAR {
		return syscall.EPROTONOSUPPORT
	}
	if c.Method == abi.MLX5_IB_METHOD_UAR_OBJ_DESTROY {
		handle := uint32(c.Value(abi.MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE))
		if !f.uars[handle] {
			return syscall.ENOENT
		}
		delete(f.uars, handle)
		f.left++
		return nil
	}
	if f.left == 0 {
		return syscall.ENOSPC
	}
	f.left--
	f.last++
	f.uars[f.last] = true
	c.SetValue(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, uint64(f.last))
	copy(c.Out(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET), mmap.Bytes(new(uint64(f.last)*uarSize)))
	copy(c.Out(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH), mmap.Bytes(new(uint32(uarSize))))
	copy(c.Out(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID), mmap.Bytes(new(100+f.last)))
	return nil
}

// mmap returns a UAR.
func (f *uarKernel) mmap(offset int64, length int) ([]byte, error) {
	if f.pages[offset] == nil {
		f.pages[offset] = make([]byte, uarSize)
	}
	return f.pages[offset][:length], nil
}

// open opens a device whose kernel has n UARs.
func (f *uarKernel) open(t *testing.T, n int) (provider.Context, error) {
	t.Helper()
	f.left, f.uars, f.pages = n, map[uint32]bool{}, map[int64][]byte{}
	k := &providertest.Kernel{ID: abi.RDMA_DRIVER_MLX5, Ioctl: f.ioctl, Mmap: f.mmap, GetContext: func(u provider.UHW) error {
		providertest.Answer(u, abi.Mlx5IbAllocUcontextResp{
			BfRegSize: fakeRegister, CacheLineSize: 64, MaxSqDescSz: 1024, MaxRqDescSz: 512,
			MaxSendWqebb: 1 << 15, MaxRecvWr: 1 << 15, MaxSrqRecvWr: 1 << 15, NumPorts: 1, CqeVersion: 1, NumUarsPerPage: 1,
		})
		return nil
	}}
	c, err := Driver{}.GetContext(k.Device(t), k.Context)
	if !mmap.OrdersDevice && errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	return c, err
}

// TestRegistersOfQPs gives QPs registers of UARs that the kernel hands out: each with halves to one
// QP, until there are no more, then the one without halves; and back.
func TestRegistersOfQPs(t *testing.T) {
	t.Setenv(shutUpBlueFlame, "")
	for _, tt := range []struct{ uars, halves int }{{1, 0}, {3, 4}, {100, maxBlueFlame}} {
		f := &uarKernel{}
		c, err := f.open(t, tt.uars)
		if err != nil {
			t.Fatal(err)
		}
		regs := &c.(*context).regs
		take := func() (*register, bool) {
			var req abi.Mlx5IbCreateQp
			r := regs.get(&req)
			page := f.pages[int64(r.page-100)*uarSize]
			if off := uintptr(r.mem) - uintptr(unsafe.Pointer(unsafe.SliceData(page))); off < uarSend || off+2*r.half > uarSize {
				t.Errorf("a register at %d of page %d", off, r.page)
			}
			if req.Flags != abi.MLX5_QP_FLAG_UAR_PAGE_INDEX || req.BfregIndex != r.page {
				t.Errorf("the request names page %d, with flags %#x; the register is in page %d", req.BfregIndex, req.Flags, r.page)
			}
			return r, r.half != 0
		}
		own := map[*register]bool{}
		for range maxBlueFlame + 5 {
			if r, halves := take(); halves {
				own[r] = true
			} else if r != regs.plain {
				t.Error("a register without halves that is not the common one")
			}
		}
		if len(own) != tt.halves {
			t.Errorf("%d UARs: %d QPs have registers of their own, want %d", tt.uars, len(own), tt.halves)
		}
		for r := range maps.Clone(own) {
			regs.put(r)
			if again, _ := take(); again != r {
				t.Error("a register that was given back is not used again")
			}
		}
		c.Release()
		if len(f.uars) != 0 || f.left != tt.uars {
			t.Errorf("UARs %v are left", f.uars)
		}
	}
	if _, err := (&uarKernel{}).open(t, 0); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("without UARs: %v, want %v", err, syscall.ENOSPC)
	}
}

// TestRefusedQueues has the kernel refuse queues: what was allocated for them is freed.
func TestRefusedQueues(t *testing.T) {
	f := newFake(t, Driver{})
	cq := f.cq(t, 16)
	mapped := func() int {
		text, err := os.ReadFile("/proc/self/statm")
		if err != nil {
			t.Fatal(err)
		}
		pages, err := strconv.Atoi(strings.Fields(string(text))[0])
		if err != nil {
			t.Fatal(err)
		}
		return pages * os.Getpagesize()
	}
	for name, create := range map[string]func(deny error) error{
		"CQ": func(deny error) error { // of 16 MiB
			_, err := f.CreateCQ(&provider.CQInit{Depth: 1<<18 - 1}, func(provider.UHW) (provider.CQInfo, error) { return provider.CQInfo{}, deny })
			return err
		},
		"QP": func(deny error) error { // of 6 MiB
			_, _, err := f.CreateQP(&provider.QPInit{
				Type: verbs.RC, Cap: verbs.QPCap{MaxSendWR: 1 << 15, MaxRecvWR: 1 << 15, MaxSendSGE: 1, MaxRecvSGE: 8}, SendCQ: cq.completionQueue, RecvCQ: cq.completionQueue,
			}, func(provider.UHW) (provider.QPInfo, error) { return provider.QPInfo{}, deny })
			return err
		},
		"SRQ": func(deny error) error { // of 16 MiB
			_, err := f.CreateSRQ(&provider.SRQInit{MaxWR: 1<<15 - 1, MaxSGE: 31}, func(provider.UHW) (provider.SRQInfo, error) { return provider.SRQInfo{}, deny })
			return err
		},
	} {
		create(syscall.ENOSPC) // allocates a page of records
		records, before := f.records.Free(), mapped()
		for range 50 { // of 300 MiB at least
			if err := create(syscall.ENOSPC); !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("%s: %v, want %v", name, err, syscall.ENOSPC)
			}
		}
		if n := f.records.Free(); n != records {
			t.Errorf("%s: %d records are free, want %d", name, n, records)
		}
		if leak := mapped() - before; leak > 150<<20 {
			t.Errorf("%s: %d MiB of memory are left", name, leak>>20)
		}
	}
}

// TestNamedRegisters takes registers that the kernel names, up to the last in a page and the last page.
func TestNamedRegisters(t *testing.T) {
	f := newFake(t, Driver{})
	pages, length := uint32(len(f.regs.static)), uint32(len(f.regs.static[0].region.Bytes()))
	for _, test := range []struct {
		size, index uint32
		ok          bool
	}{
		{fakeRegister, 0, true}, {fakeRegister, pages*perUAR - 1, true}, {fakeRegister, pages * perUAR, false},
		{length - 8 - uarSend, 1, true}, {length - uarSend, 1, false}, {4, 1, false},
	} {
		f.resp.BfRegSize = test.size
		r, err := f.regs.named(test.index)
		if (err == nil) != test.ok {
			t.Errorf("register %d of %d bytes: %v", test.index, test.size, err)
		}
		if page := test.index / perUAR; err == nil {
			if off := uintptr(r.mem) - uintptr(f.regs.static[page].mem); off != uintptr(uarSend+test.index%perUAR*test.size) || r.half != 0 {
				t.Errorf("register %d of %d bytes is at %d", test.index, test.size, off)
			}
		}
	}
}

// TestModify follows the extensions and the port of a QP: each changes with its own bit of the mask.
func TestModify(t *testing.T) {
	f := newFake(t, Driver{})
	p := f.qp(t, verbs.RC, f.cq(t, 16), verbs.QPCap{MaxSendWR: 1}, nil)
	p.offer = 3
	p.ece.Store(3)
	ece := func(options uint32) verbs.ECE { return verbs.ECE{VendorID: vendorID, Options: options} }
	for i, test := range []struct {
		attr      verbs.QPAttr
		mask      verbs.QPAttrMask
		in        bool // the kernel gets the extensions
		fail      error
		ece, port uint32 // then
	}{
		{verbs.QPAttr{State: verbs.StateRTR, Port: 2, ECE: ece(1)}, verbs.MaskState, true, nil, 1, 0},
		{verbs.QPAttr{Port: 2}, verbs.MaskPort, false, nil, 1, 2},
		{verbs.QPAttr{State: verbs.StateRTR, Port: 1, ECE: ece(1)}, verbs.MaskPort, false, nil, 1, 1},
		{verbs.QPAttr{State: verbs.StateRTS}, verbs.MaskState, false, nil, 1, 1},
		{verbs.QPAttr{State: verbs.StateReset, Port: 4}, verbs.MaskState | verbs.MaskPort, false, syscall.EINVAL, 1, 1},
		{verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState, false, nil, 3, 1},
		{verbs.QPAttr{State: verbs.StateRTR}, verbs.MaskState, false, nil, 0, 1},
		{verbs.QPAttr{State: verbs.StateRTR, ECE: verbs.ECE{VendorID: 1, Options: 1}}, verbs.MaskState, false, nil, 0, 1},
	} {
		err := p.send.Modify(test.attr, test.mask, func(u provider.UHW) error {
			if (len(u.In) > 0) != test.in {
				t.Errorf("step %d: %d bytes to the kernel", i, len(u.In))
			}
			if test.in && providertest.Request[abi.Mlx5IbModifyQp](u).EceOptions != test.attr.ECE.Options {
				t.Errorf("step %d: other extensions", i)
			}
			if len(u.Out) > 0 {
				providertest.Answer(u, abi.Mlx5IbModifyQpResp{EceOptions: test.attr.ECE.Options})
			}
			return test.fail
		})
		if !errors.Is(err, test.fail) || p.ece.Load() != test.ece || p.port.Load() != test.port {
			t.Errorf("step %d: %v, extensions %d, port %d", i, err, p.ece.Load(), p.port.Load())
		}
	}
}
