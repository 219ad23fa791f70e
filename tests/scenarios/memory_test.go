package scenarios

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/endpoint"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/internal/scenario"
	"github.com/goverbs/verbs/uverbs"
)

var mr = []test{
	{"mr/reg_mr_bad_flags", everywhere, func(e *env) error {
		pd := e.pd()
		for _, access := range []verbs.Access{verbs.AccessRemoteWrite, verbs.AccessRemoteAtomic} {
			if _, err := pd.AllocMR(4096, access, uverbs.MROptions{}); refused(err, unix.EINVAL, unix.EOPNOTSUPP) != nil {
				return fmt.Errorf("access %v without local write: %w", access, err)
			}
		}
		return nil
	}},
	{"mr/reg_mw_wrong_type", with(uverbs.FeatureMWType1), func(e *env) error {
		if !e.has(uverbs.FeatureMWType1) {
			return e.ctx.Probe(uverbs.FeatureMWType1)
		}
		_, err := e.pd().AllocMW(7)
		return refused(err, unix.EINVAL)
	}},
}

// here has scenarios that use what only this process or this machine has, or refuse a request.
var here = []scenario.Scenario{
	{Name: "SRQ limit", Core: "srq/modify_srq_limit", Options: scenario.Options{SRQ: true, Features: []uverbs.Feature{uverbs.FeatureSRQ}}, Run: limitSRQ},
	{Name: "imported PD", Core: "shared_pd/imported_rc_ex_rdma_write", Options: scenario.Options{Features: []uverbs.Feature{uverbs.FeatureImport}}, Run: importedPD},
	{Name: "huge pages", Core: "parent_domain/huge_page_traffic", Run: hugePages},
	{Name: "programs started", Core: "fork/is_fork_initialized", Run: programsStarted},
	{Name: "DMA-BUF", Core: "mr/dmabuf_reg_mr mr/dmabuf_dereg_mr_twice mr/dmabuf_rdma_traffic", Options: scenario.Options{Features: []uverbs.Feature{uverbs.FeatureDMABuf}}, Run: dmabuf},
	{Name: "full receive queue", Core: "qpex/full_rq_bad_flow", Run: fullRecvQueue},
	{Name: "receive of too many SGEs", Core: "qpex/rq_with_larger_sgl_bad_flow", Run: func(a *scenario.Actor) {
		_, err := a.PostRecv(verbs.RecvWR{SGL: make([]verbs.SGE, 5)})
		a.Must(refused(err, verbs.ErrTooManySGEs))
	}},
}

func fullRecvQueue(a *scenario.Actor) {
	for range 1000 {
		if _, err := a.PostRecv(verbs.RecvWR{}); err != nil {
			a.Must(refused(err, verbs.ErrQueueFull))
			return
		}
	}
	a.Must(errors.New("1000 receives fit"))
}

// limitSRQ is not for verbs check: there a device has the events of several clients.
func limitSRQ(a *scenario.Actor) {
	const limit, sends = 8, 5
	if a.Active {
		a.Sync()
		for range sends {
			a.Must(a.Do(a.Ctx, verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("x")}))
		}
		a.Sync()
		return
	}
	for range 10 {
		_, err := a.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{a.MR.SGE(0, 10)}})
		a.Must(err)
	}
	a.Must(a.SRQ.SetLimit(limit))
	got, err := a.SRQ.Query()
	a.Must(err)
	if got.Limit != limit {
		a.Must(fmt.Errorf("the SRQ has a limit of %d, not %d", got.Limit, limit))
	}
	a.Sync()
	a.Sync()
	ctx, cancel := context.WithTimeout(a.Ctx, endpoint.Limit)
	defer cancel()
	for ev, err := range a.Dev.AsyncEvents(ctx) {
		a.Must(err)
		if ev.Type == verbs.EventSRQLimitReached && ev.SRQ == a.SRQ {
			return
		}
	}
}

// importedPD uses a region of a PD that a second context has imported.
func importedPD(a *scenario.Actor) {
	if a.Active {
		a.Use(a.MR)
	} else {
		other := scenario.Own(uverbs.ImportContext(a.Dev.FD()))(a)
		pd := scenario.Own(other.ImportPD(a.PD.Handle()))(a)
		mr, err := pd.ImportMR(a.MR.Handle())
		a.Must(err)
		if mr.LKey() != a.MR.LKey() || mr.RKey() != a.MR.RKey() || mr.Bytes() != nil {
			a.Must(fmt.Errorf("imported keys %#x, %#x", mr.LKey(), mr.RKey()))
		}
		a.Must(mr.Close())
		a.Use(scenario.Own(pd.AllocMR(4096, endpoint.RemoteAccess(a.Dev), uverbs.MROptions{}))(a))
	}
	a.Write(a.Remote.RKey, 1000)
}

// hugePages reserves huge pages and receives to them. Outside of the lab it reserves nothing of the
// machine's.
func hugePages(a *scenario.Actor) {
	if !a.Active {
		var o uverbs.MROptions
		if labtest.Lab {
			a.Must(os.WriteFile("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", []byte("4"), 0o644))
			o.PageSize = 2 << 20
		}
		a.MR = scenario.Own(a.PD.AllocMR(1<<20, endpoint.RemoteAccess(a.Dev), o))(a)
	}
	a.Turns(10, 60000)
}

// programsStarted checks that starting a program does not affect regions. After a fork the kernel
// copies pinned pages for the child immediately, and Go has no fork that continues to run Go code.
func programsStarted(a *scenario.Actor) {
	for range 5 {
		if a.Active {
			a.Must(exec.Command("/proc/self/exe", "-test.run=^$").Run())
		}
		a.Turns(2, 4096)
		a.Write(a.Remote.RKey, 4096)
	}
}

// dmabuf writes to a DMA-BUF and reads it.
func dmabuf(a *scenario.Actor) {
	const n = 5000
	mem := a.MR
	if a.Active {
		a.Use(mem)
		data, back := mem.SGE(0, n), mem.SGE(n, n)
		a.Fill(1, data)
		a.Must(a.Do(a.Ctx, a.Request(verbs.OpRDMAWrite, a.Remote.RKey, data)))
		a.Must(a.Do(a.Ctx, a.Request(verbs.OpRDMARead, a.Remote.RKey, back)))
		a.Must(a.Compare(1, back))
		a.Sync()
		return
	}
	f, bytes := udmabuf(a, 16384)
	mr := scenario.Own(a.PD.RegisterDMABuf(int(f.Fd()), 0, len(bytes), 0x10000, endpoint.RemoteAccess(a.Dev)))(a)
	a.Use(mr)
	a.Sync()
	a.MR = mem
	copy(mem.Bytes(), bytes[:n])
	a.Must(a.Compare(1, mem.SGE(0, n)))
	a.Must(errors.Join(mr.Close(), mr.Close()))
}

// udmabuf creates a DMA-BUF of size bytes of this process's memory, and returns both.
func udmabuf(a *scenario.Actor, size int) (*os.File, []byte) {
	memfd, err := unix.MemfdCreate("udmabuf", unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC)
	a.Must(err)
	f := os.NewFile(uintptr(memfd), "memfd")
	defer f.Close()
	a.Must(f.Truncate(int64(size)))
	_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	a.Must(err)
	mem, err := unix.Mmap(memfd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	a.Must(err)
	scenario.Own(mapping(mem), nil)(a)
	dev, err := os.OpenFile("/dev/udmabuf", os.O_RDWR, 0)
	a.Must(err)
	defer dev.Close()
	create := struct { // struct udmabuf_create
		memfd, flags uint32
		offset, size uint64
	}{uint32(memfd), 1, 0, uint64(size)}
	const ioctl = 0x40187542 // UDMABUF_CREATE
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, dev.Fd(), ioctl, uintptr(unsafe.Pointer(&create)))
	if errno != 0 {
		a.Must(os.NewSyscallError("UDMABUF_CREATE", errno))
	}
	return scenario.Own(os.NewFile(fd, "dma-buf"), nil)(a), mem
}

// hasUDMABuf reports whether the kernel makes DMA-BUFs of memory files. Debian's 6.1 does not.
func hasUDMABuf() bool {
	if labtest.Lab {
		exec.Command("modprobe", "udmabuf").Run()
	}
	_, err := os.Stat("/dev/udmabuf")
	return err == nil
}

// mapping is memory that Close unmaps.
type mapping []byte

func (m mapping) Close() error { return unix.Munmap(m) }
