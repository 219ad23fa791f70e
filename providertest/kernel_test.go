package providertest_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
	"github.com/goverbs/verbs/provider/erdma"
	"github.com/goverbs/verbs/providertest"
	"github.com/goverbs/verbs/uverbs"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rings has the CQs of a kernel of erdma, by handle.
type rings map[uint32][]byte

// newERDMA returns a kernel with an erdma.
func newERDMA(t testing.TB) (*providertest.Kernel, rings) {
	if !mmap.OrdersDevice {
		t.Skip("erdma does not run on this architecture")
	}
	r := rings{}
	return &providertest.Kernel{
		ID: abi.RDMA_DRIVER_ERDMA, Registers: make([]byte, 1<<16),
		Attr: verbs.DeviceAttr{MaxQPWR: 64, MaxSGE: 1, MaxCQE: 1 << 10},
		Port: verbs.PortAttr{State: verbs.PortActive, ActiveMTU: 3, MaxMessage: 1 << 20, LinkLayer: verbs.LinkEthernet},
		GetContext: func(u provider.UHW) error {
			providertest.Answer(u, abi.ErdmaUrespAllocCtx{})
			return nil
		},
		CreateCQ: func(cq *provider.CQInfo, u provider.UHW) error {
			if cq.Depth > 512 {
				return syscall.ENOSPC
			}
			r[cq.Handle] = providertest.Memory(providertest.Request[abi.ErdmaUreqCreateCq](u).QbufVa, cq.Depth*32)
			providertest.Answer(u, abi.ErdmaUrespCreateCq{CqId: cq.Handle, NumCqe: uint32(cq.Depth)})
			return nil
		},
		CreateQP: func(qp *providertest.QP, u provider.UHW) error {
			qp.QPNum = 77
			providertest.Answer(u, abi.ErdmaUrespCreateQp{
				QpId: 77, NumSqe: uint32(4 * qp.Cap.MaxSendWR), NumRqe: uint32(qp.Cap.MaxRecvWR), RqOffset: uint32(128*qp.Cap.MaxSendWR+4095) &^ 4095,
			})
			return nil
		},
		ModifyQP: func(_ uint32, s verbs.QPState, _ provider.UHW) error {
			if s == verbs.StateSQD {
				return syscall.EINVAL
			}
			return nil
		},
	}, r
}

// open opens a kernel's device.
func open(t testing.TB, k *providertest.Kernel, name string) *uverbs.Context {
	t.Helper()
	remove, err := k.Register(name)
	check(t, err)
	t.Cleanup(remove)
	ctx, err := uverbs.Open(name)
	check(t, err)
	return ctx
}

// TestVerbs goes from CreateCQ to Poll and PollWait by package uverbs, and closes all.
func TestVerbs(t *testing.T) {
	k, rings := newERDMA(t)
	ctx := open(t, k, "kit0")
	if ctx.Driver() != "erdma" || ctx.Device().IWARP() {
		t.Errorf("driver %s, iWARP %v", ctx.Driver(), ctx.Device().IWARP())
	}
	channel, err := ctx.CreateCompChannel()
	check(t, err)
	cq, err := ctx.CreateCQ(uverbs.CQOptions{Depth: 64, Channel: channel})
	check(t, err)
	var handle uint32
	for handle = range rings {
	}
	pd, err := ctx.AllocPD()
	check(t, err)
	mr, err := pd.AllocMR(4096, verbs.AccessLocalWrite, uverbs.MROptions{})
	check(t, err)
	qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq})
	check(t, err)
	for s := verbs.StateInit; s <= verbs.StateRTS; s++ {
		check(t, qp.Modify(verbs.QPAttr{State: s}, verbs.MaskState))
	}
	if err := qp.Modify(verbs.QPAttr{State: verbs.StateSQD}, verbs.MaskState); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a state that the kernel refuses: %v", err)
	}
	if n := k.Objects(); n != 4 || qp.Num() != 77 {
		t.Errorf("%d objects, QP %d", n, qp.Num())
	}
	_, err = qp.PostRecv(verbs.RecvWR{ID: 5, SGL: []verbs.SGE{mr.SGE(0, 8)}})
	check(t, err)
	done := make(chan verbs.WC)
	go func() {
		within, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		wc, err := cq.Next(within)
		if err != nil {
			t.Error(err)
		}
		done <- wc
	}()
	// The card writes the completion and, as the CQ may be armed, an event.
	copy(rings[handle][4:], []byte{0, 0, 0, 0, 0, 0, 0, 77, 0, 0, 0, 0, 0, 0, 0, 8})
	mmap.Word(rings[handle], 0).Store(0x00010480) // owner 1, RECV, of a receive; as little-endian sees big-endian
	k.Event(handle)
	if wc := <-done; wc.ID != 5 || wc.Opcode != verbs.WCRecv || wc.ByteLen != 8 {
		t.Errorf("%+v", wc)
	}
	for _, c := range []interface{ Close() error }{qp, mr, pd, cq, channel, ctx} {
		check(t, c.Close())
	}
	if n := k.Objects(); n != 0 {
		t.Errorf("%d objects are left", n)
	}
}

// TestRefusals: what the kernel refuses fails with its error number, and leaves nothing.
func TestRefusals(t *testing.T) {
	k, _ := newERDMA(t)
	ctx := open(t, k, "kit1")
	defer ctx.Close()
	if _, err := ctx.CreateCQ(uverbs.CQOptions{Depth: 1000}); !errors.Is(err, syscall.ENOSPC) || k.Objects() != 0 {
		t.Errorf("%v; %d objects", err, k.Objects())
	}
	if _, err := k.Register("kit1"); err == nil {
		t.Error("two devices have a name")
	}
	other := &providertest.Kernel{ID: abi.RDMA_DRIVER_HFI1}
	remove, err := other.Register("kit2")
	check(t, err)
	defer remove()
	if _, err := uverbs.Open("kit2"); !errors.Is(err, verbs.ErrNoDriver) || !strings.Contains(err.Error(), "hfi1") {
		t.Errorf("a device without a driver: %v", err)
	}
}

// TestDevice calls a driver without package uverbs.
func TestDevice(t *testing.T) {
	k, _ := newERDMA(t)
	k.IWARP = true
	dev := k.Device(t)
	c, err := erdma.Driver{}.GetContext(dev, k.Context)
	check(t, err)
	defer c.Release()
	cq, err := k.NewCQ(c, &provider.CQInit{Depth: 64})
	check(t, err)
	defer cq.Release()
	send, recv, err := k.NewQP(c, &provider.QPInit{Type: verbs.RC, Cap: verbs.QPCap{MaxSendWR: 4, MaxSendSGE: 1, MaxRecvWR: 4, MaxRecvSGE: 1}, SendCQ: cq, RecvCQ: cq})
	check(t, err)
	if _, err := k.NewPD(c); err != nil || !dev.IWARP || k.Objects() != 3 {
		t.Errorf("%v, %+v, %d objects", err, dev, k.Objects())
	}
	providertest.SetState(send, recv, verbs.StateErr)
	if n, err := send.Post([]verbs.SendWR{{ID: 1, Opcode: verbs.OpSend}}); n != 1 || err != nil {
		t.Error(n, err)
	}
	var wcs [1]verbs.WC
	if n := provider.Poll(cq, wcs[:]); n != 1 || wcs[0].Status != verbs.WCFlushErr {
		t.Errorf("after ERR: %d, %+v", n, wcs)
	}
	if _, err := mmap.Map(dev.FD, 1<<16, 4096); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a page that there is not: %v", err)
	}
	send.Release()
	recv.Release()
}

// TestLengths: private parts of another length than the kernel's structures are mistakes.
func TestLengths(t *testing.T) {
	for name, f := range map[string]func(){
		"Request": func() { providertest.Request[abi.ErdmaUreqCreateCq](provider.UHW{In: make([]byte, 23)}) },
		"Answer":  func() { providertest.Answer(provider.UHW{Out: make([]byte, 9)}, abi.ErdmaUrespCreateCq{}) },
	} {
		func() {
			defer func() {
				if text, _ := recover().(string); !strings.Contains(text, "abi.Erdma") {
					t.Errorf("%s: %s", name, text)
				}
			}()
			f()
		}()
	}
}
