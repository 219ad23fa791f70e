package scenarios

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

func timeout(e *env) context.Context {
	ctx := labtest.Within(e.t, 5*time.Second)
	return ctx
}

// hugeMR reserves huge pages and allocates a region of them. Outside of the lab it reserves nothing
// of the machine's.
func hugeMR(e *env, pd *uverbs.PD) (*uverbs.MR, error) {
	if !labtest.Lab {
		return pd.AllocMR(1<<20, e.access(), uverbs.MROptions{})
	}
	if err := os.WriteFile("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", []byte("4"), 0o644); err != nil {
		return nil, err
	}
	return pd.AllocMR(1<<20, e.access(), uverbs.MROptions{PageSize: 2 << 20})
}

var mr = []scenario{
	{"mr/mr_rereg_addr", with("MR rereg, memory"), func(e *env) error {
		a, b := e.pair(rdmatest.PairOptions{})
		if err := b.MR.Rereg(uverbs.ReregOptions{Memory: make([]byte, 8192)}); err != nil {
			return err
		}
		if b.MR.Len() != 8192 {
			return fmt.Errorf("%d bytes", b.MR.Len())
		}
		return errors.Join(e.traffic(a, b, 5, 1000, false), e.write(a, b, 8192, b.MR.RKey()), e.read(a, b, 8192, b.MR.RKey()))
	}},
	{"mr/mr_rereg_access", with("MR rereg, access"), func(e *env) error {
		a, b := e.pair(rdmatest.PairOptions{Access: verbs.AccessLocalWrite})
		all := e.access()
		if err := b.MR.Rereg(uverbs.ReregOptions{Access: &all}); err != nil {
			return err
		}
		return errors.Join(e.write(a, b, 500, b.MR.RKey()), e.read(a, b, 500, b.MR.RKey()))
	}},
	{"mr/mr_rereg_atomic", with("MR rereg, access"), func(e *env) error {
		a, b := e.pair(rdmatest.PairOptions{Access: verbs.AccessLocalWrite})
		all := e.access()
		if err := b.MR.Rereg(uverbs.ReregOptions{Access: &all}); err != nil {
			return err
		}
		return e.atomicOp(verbs.OpFetchAdd, a, b, 0, a.MR.SGE(0, 8), b.MR.RKey())
	}},
	{"mr/mr_rereg_access_bad_flow", with("MR rereg, access"), func(e *env) error {
		a, b := e.pair(rdmatest.PairOptions{})
		local := verbs.AccessLocalWrite
		if err := b.MR.Rereg(uverbs.ReregOptions{Access: &local}); err != nil {
			return err
		}
		return fails(e.write(a, b, 500, b.MR.RKey()), verbs.WCRemAccessErr)
	}},
	{"mr/mr_rereg_pd", with("MR rereg, PD"), func(e *env) error {
		a, b := e.pair(rdmatest.PairOptions{})
		other, err := b.PD.Context().AllocPD()
		if err != nil {
			return err
		}
		defer other.Close()
		if err := b.MR.Rereg(uverbs.ReregOptions{PD: other}); err != nil {
			return err
		}
		if err := refused(other.Close(), verbs.ErrInUse); err != nil {
			return err
		}
		if err := fails(e.write(a, b, 500, b.MR.RKey()), verbs.WCRemAccessErr); err != nil {
			return err
		}
		return b.MR.Rereg(uverbs.ReregOptions{PD: b.PD})
	}},
	{"mr/reg_mr_bad_flags", everywhere, func(e *env) error {
		pd := e.pd()
		for _, access := range []verbs.Access{verbs.AccessRemoteWrite, verbs.AccessRemoteAtomic} {
			if _, err := pd.AllocMR(4096, access, uverbs.MROptions{}); refused(err, unix.EINVAL, unix.EOPNOTSUPP) != nil {
				return fmt.Errorf("access %v without local write: %w", access, err)
			}
		}
		return nil
	}},
	{"mr/create_dm_mr", nowhere, probe("device memory")},
}

// bind binds a window of b to the first n bytes of b's region.
func (e *env) bind(b *rdmatest.Side, typ verbs.MWType, n int) (*uverbs.MW, uint32, error) {
	mw, err := b.PD.AllocMW(typ)
	if err != nil {
		return nil, 0, err
	}
	e.t.Cleanup(func() { mw.Close() }) // before the region it is bound to
	rkey, err := b.QP.BindMW(mw, uverbs.BindOptions{
		ID: 3, Flags: verbs.SendSignaled, MR: b.MR, Length: n, Access: verbs.AccessRemoteWrite | verbs.AccessRemoteRead,
	})
	if err != nil {
		return nil, 0, err
	}
	if wc, err := e.wait(b.SendCQ, false); err != nil || wc.ID != 3 || wc.Opcode != verbs.WCBindMW {
		return nil, 0, fmt.Errorf("bind: %+v, %w", wc, err)
	}
	return mw, rkey, nil
}

// window uses a window of a type on b's memory, revokes it by take, and checks
// that the peer is refused.
func window(typ verbs.MWType, take func(e *env, a, b *rdmatest.Side, mw *uverbs.MW) error) func(*env) error {
	return func(e *env) error {
		access := e.access()
		if !e.siw {
			access |= verbs.AccessMWBind
		}
		a, b := e.pair(rdmatest.PairOptions{Access: access})
		mw, rkey, err := e.bind(b, typ, 1000)
		if err != nil {
			return err
		}
		if rkey == b.MR.RKey() || rkey != mw.RKey() {
			return fmt.Errorf("key %#x", rkey)
		}
		if err := errors.Join(e.write(a, b, 1000, rkey), e.read(a, b, 1000, rkey)); err != nil {
			return err
		}
		if take == nil {
			return fails(e.write(a, b, 1000, verbs.NextRKey(rkey)), verbs.WCRemAccessErr)
		}
		if err := take(e, a, b, mw); err != nil {
			return fmt.Errorf("take away: %w", err)
		}
		return fails(e.write(a, b, 1000, rkey), verbs.WCRemAccessErr)
	}
}

var mw = []scenario{
	{"mr/mw_type1", with("MW type 1"), window(verbs.MWType1, nil)},
	{"mr/mw_type2", with("MW type 2"), window(verbs.MWType2, nil)},
	{"mr/invalidate_mw_type1", with("MW type 1"), window(verbs.MWType1, func(e *env, a, b *rdmatest.Side, mw *uverbs.MW) error {
		if _, err := b.QP.BindMW(mw, uverbs.BindOptions{Flags: verbs.SendSignaled}); err != nil {
			return err
		}
		_, err := e.wait(b.SendCQ, false)
		return err
	})},
	{"mr/mw_type2_invalidate_local", with("MW type 2"), window(verbs.MWType2, func(e *env, a, b *rdmatest.Side, mw *uverbs.MW) error {
		return e.do(b, verbs.SendWR{Opcode: verbs.OpLocalInv, RKey: mw.RKey()})
	})},
	{"mr/mw_type2_invalidate_remote", with("MW type 2"), window(verbs.MWType2, func(e *env, a, b *rdmatest.Side, mw *uverbs.MW) error {
		if _, err := b.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{b.MR.SGE(0, 10)}}); err != nil {
			return err
		}
		if err := e.do(a, verbs.SendWR{Opcode: verbs.OpSendInv, RKey: mw.RKey(), Inline: []byte("bye")}); err != nil {
			return err
		}
		wc, err := e.wait(b.RecvCQ, false)
		if err == nil && (wc.Flags&verbs.WCWithInv == 0 || wc.InvalidatedRKey() != mw.RKey()) {
			err = fmt.Errorf("receive %+v", wc)
		}
		return err
	})},
	{"mr/mw_type2_invalidate_dealloc", with("MW type 2"), window(verbs.MWType2, func(e *env, a, b *rdmatest.Side, mw *uverbs.MW) error { return mw.Close() })},
	{"mr/reg_mw_wrong_type", notOnSIW, func(e *env) error {
		if e.siw {
			return e.ctx.Probe(uverbs.FeatureMWType1)
		}
		_, err := e.pd().AllocMW(7)
		return refused(err, unix.EINVAL)
	}},
}

// udmabuf creates a DMA-BUF of size bytes of this process's memory, and returns
// both.
func udmabuf(e *env, size int) (*os.File, []byte, error) {
	memfd, err := unix.MemfdCreate("udmabuf", unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, err
	}
	f := os.NewFile(uintptr(memfd), "memfd")
	defer f.Close()
	if err := f.Truncate(int64(size)); err != nil {
		return nil, nil, err
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		return nil, nil, err
	}
	mem, err := unix.Mmap(memfd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, err
	}
	e.t.Cleanup(func() { unix.Munmap(mem) })
	if labtest.Lab {
		exec.Command("modprobe", "udmabuf").Run() // not every kernel has it
	}
	dev, err := os.OpenFile("/dev/udmabuf", os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	defer dev.Close()
	create := struct { // struct udmabuf_create
		memfd, flags uint32
		offset, size uint64
	}{uint32(memfd), 1, 0, uint64(size)}
	const ioctl = 0x40187542 // UDMABUF_CREATE
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, dev.Fd(), ioctl, uintptr(unsafe.Pointer(&create)))
	if errno != 0 {
		return nil, nil, os.NewSyscallError("UDMABUF_CREATE", errno)
	}
	buf := os.NewFile(fd, "dma-buf")
	e.t.Cleanup(func() { buf.Close() })
	return buf, mem, nil
}

// dmabufMR returns a side whose region is a DMA-BUF, and the memory.
func (e *env) dmabufMR(s *rdmatest.Side, access verbs.Access) (*rdmatest.Side, []byte, error) {
	buf, mem, err := udmabuf(e, 16384)
	if errors.Is(err, os.ErrNotExist) { // nothing can make one, as this kernel lacks udmabuf
		err = cmp.Or(e.ctx.Probe(uverbs.FeatureDMABuf), err)
	}
	if err != nil {
		return nil, nil, err
	}
	mr, err := s.PD.RegisterDMABuf(int(buf.Fd()), 0, len(mem), 0x10000, access)
	if err != nil {
		return nil, nil, err
	}
	labtest.Close(e.t, mr)
	there := *s
	there.MR = mr
	return &there, mem, nil
}

func dmabufTest(use func(e *env, a, b *rdmatest.Side, mem []byte) error) func(*env) error {
	return func(e *env) error {
		a, b := e.pair(rdmatest.PairOptions{})
		there, mem, err := e.dmabufMR(b, e.access())
		if err != nil {
			return err
		}
		return use(e, a, there, mem)
	}
}

var dmabuf = []scenario{
	{"mr/dmabuf_reg_mr", with("DMA-BUF MR"), dmabufTest(func(e *env, a, b *rdmatest.Side, mem []byte) error { return nil })},
	{"mr/dmabuf_dereg_mr_twice", with("DMA-BUF MR"), dmabufTest(func(e *env, a, b *rdmatest.Side, mem []byte) error {
		return errors.Join(b.MR.Close(), b.MR.Close())
	})},
	{"mr/dmabuf_rdma_traffic", with("DMA-BUF MR"), dmabufTest(func(e *env, a, b *rdmatest.Side, mem []byte) error {
		want := bytes.Clone(fill(a.MR.Bytes()[:5000]))
		if err := e.do(a, verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.MR.SGE(0, 5000)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}); err != nil {
			return err
		}
		if err := e.do(a, verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{a.MR.SGE(5000, 5000)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}); err != nil {
			return err
		}
		if !bytes.Equal(mem[:5000], want) || !bytes.Equal(a.MR.Bytes()[5000:10000], want) {
			return errors.New("data differs")
		}
		return nil
	})},
}

// odpTest runs a scenario with regions that are paged in on demand.
func odpTest(use func(e *env, a, b *rdmatest.Side) error) func(*env) error {
	return func(e *env) error {
		access := e.access() | verbs.AccessOnDemand
		// Registering fails if the kernel lacks the feature.
		pd := e.pd()
		mr, err := pd.AllocMR(4096, access, uverbs.MROptions{})
		if err != nil {
			return err
		}
		if err := mr.Close(); err != nil {
			return err
		}
		a, b := e.pair(rdmatest.PairOptions{Access: access})
		return use(e, a, b)
	}
}

func prefetch(advice verbs.Advice, wait bool) func(e *env, a, b *rdmatest.Side) error {
	return func(e *env, a, b *rdmatest.Side) error {
		for _, s := range []*rdmatest.Side{a, b} {
			if err := s.PD.Advise(advice, wait, s.MR.SGE(0, s.MR.Len())); err != nil {
				return err
			}
		}
		return e.traffic(a, b, 10, 1000, false)
	}
}

// odpSize is one packet: rxe in 7.2 stores data after the first packet of a page,
// or data that crosses into another page, in the wrong place (rxe_odp_mr_copy
// ignores the offset).
const odpSize = 1024

var onDemand = with("on-demand paging")

var odp = []scenario{
	{"odp/odp_rc_traffic", onDemand, odpTest(func(e *env, a, b *rdmatest.Side) error { return e.traffic(a, b, 20, odpSize, false) })},
	{"odp/odp_rc_rdma_read", onDemand, odpTest(func(e *env, a, b *rdmatest.Side) error { return e.read(a, b, odpSize, b.MR.RKey()) })},
	{"odp/odp_rc_rdma_write", onDemand, odpTest(func(e *env, a, b *rdmatest.Side) error { return e.write(a, b, odpSize, b.MR.RKey()) })},
	{"odp/odp_rc_atomic_cmp_and_swp", onDemand, odpTest(func(e *env, a, b *rdmatest.Side) error {
		return e.atomicOp(verbs.OpCompareSwap, a, b, 0, a.MR.SGE(0, 8), b.MR.RKey())
	})},
	{"odp/odp_rc_atomic_fetch_and_add", onDemand, odpTest(func(e *env, a, b *rdmatest.Side) error {
		return e.atomicOp(verbs.OpFetchAdd, a, b, 0, a.MR.SGE(0, 8), b.MR.RKey())
	})},
	{"odp/odp_rc_mixed_mr", onDemand, odpTest(func(e *env, a, b *rdmatest.Side) error {
		mr, err := b.PD.AllocMR(8192, e.access(), uverbs.MROptions{})
		if err != nil {
			return err
		}
		labtest.Close(e.t, mr)
		pinned := *b
		pinned.MR = mr
		return e.traffic(a, &pinned, 20, odpSize, false)
	})},
	{"odp/odp_ud_traffic", onDemand, func(e *env) error {
		if err := e.ctx.Probe(uverbs.FeatureOnDemand); err != nil {
			return err
		}
		a, b := e.pair(rdmatest.PairOptions{Type: verbs.UD, Access: e.access() | verbs.AccessOnDemand})
		return e.traffic(a, b, 20, 900, false)
	}},
	{"odp/odp_xrc_traffic", nowhere, probe("XRC domain")},
	{"odp/odp_implicit_rc_traffic", nowhere, func(e *env) error { return e.ctx.Probe("implicit on-demand paging") }},
	{"odp/odp_sync_prefetch_rc_traffic", with("MR advice"), odpTest(prefetch(verbs.AdvisePrefetchWrite, true))},
	{"odp/odp_async_prefetch_rc_traffic", with("MR advice"), odpTest(prefetch(verbs.AdvisePrefetchWrite, false))},
	{"odp/odp_prefetch_sync_no_page_fault_rc_traffic", with("MR advice"), odpTest(prefetch(verbs.AdvisePrefetchNoFault, true))},
}
