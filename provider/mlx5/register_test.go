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
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// uarFile is a kernel's file that hands out UARs.
type uarFile struct {
	host.Unsupported
	left  int             // how many it has
	uars  map[uint32]bool // by handle
	last  uint32
	pages map[int64][]byte // by offset, which is the page's number times 4096
}

func (*uarFile) Close() {}

// Ioctl implements [host.File].
func (f *uarFile) Ioctl(_ uint32, msg []byte) syscall.Errno {
	hdr := mmap.Slice[abi.IbUverbsIoctlHdr](msg, 0, 1)[0]
	attrs := map[uint16]*abi.IbUverbsAttr{}
	for i := range hdr.NumAttrs {
		a := &mmap.Slice[abi.IbUverbsAttr](msg, int(unsafe.Sizeof(hdr)), int(hdr.NumAttrs))[i]
		attrs[a.AttrId] = a
	}
	if hdr.ObjectId != abi.MLX5_IB_OBJECT_UAR {
		return syscall.EPROTONOSUPPORT
	}
	if hdr.MethodId == abi.MLX5_IB_METHOD_UAR_OBJ_DESTROY {
		handle := uint32(*attrs[abi.MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE].Data())
		if !f.uars[handle] {
			return syscall.ENOENT
		}
		delete(f.uars, handle)
		f.left++
		return 0
	}
	if f.left == 0 {
		return syscall.ENOSPC
	}
	f.left--
	f.last++
	f.uars[f.last] = true
	out := func(id uint16) unsafe.Pointer {
		p := uintptr(*attrs[id].Data())
		return *(*unsafe.Pointer)(unsafe.Pointer(&p))
	}
	*attrs[abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE].Data() = uint64(f.last)
	*(*uint64)(out(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET)) = uint64(f.last) * uarSize
	*(*uint32)(out(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH)) = uarSize
	*(*uint32)(out(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID)) = 100 + f.last
	return 0
}

// Mmap implements [host.File].
func (f *uarFile) Mmap(offset int64, length int) ([]byte, syscall.Errno) {
	if f.pages[offset] == nil {
		f.pages[offset] = make([]byte, uarSize)
	}
	return f.pages[offset][:length], 0
}

// open opens a device whose kernel has n UARs.
func (f *uarFile) open(t *testing.T, n int) (provider.Context, error) {
	t.Helper()
	f.left, f.uars, f.pages = n, map[uint32]bool{}, map[int64][]byte{}
	fd, errno := host.Install(f, "uars")
	if errno != 0 {
		t.Fatal(errno)
	}
	t.Cleanup(func() { host.Close(fd) })
	c, err := Driver{}.GetContext(&provider.Device{FD: fd, Driver: abi.RDMA_DRIVER_MLX5}, func(u provider.UHW) error {
		copy(u.Out, mmap.Bytes(&abi.Mlx5IbAllocUcontextResp{
			BfRegSize: fakeRegister, CacheLineSize: 64, MaxSqDescSz: 1024, MaxRqDescSz: 512,
			MaxSendWqebb: 1 << 15, MaxRecvWr: 1 << 15, MaxSrqRecvWr: 1 << 15, NumPorts: 1, CqeVersion: 1, NumUarsPerPage: 1,
		}))
		return nil
	})
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
		f := &uarFile{}
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
	if _, err := (&uarFile{}).open(t, 0); !errors.Is(err, syscall.ENOSPC) {
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
