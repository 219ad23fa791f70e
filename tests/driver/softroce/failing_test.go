package softroce_test

import (
	"errors"
	"os"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
	"github.com/goverbs/verbs/uverbs"
)

func init() { provider.Register(failing{}) }

// failing is a driver for siw that runs all verbs, but fails after one.
type failing struct{}

// failAt is the verb after which it fails, or empty.
var failAt string

var errDriver = errors.New("the driver failed")

// after returns the error of a driver's method whose verb returned err.
func after(verb string, err error) error {
	if err == nil && failAt == verb {
		return errDriver
	}
	return err
}

func (failing) Name() string { return "failing" }
func (failing) ID() uint32   { return abi.RDMA_DRIVER_SIW }

func (failing) GetContext(_ *provider.Device, get func(provider.UHW) error) (provider.Context, error) {
	return failing{}, after("context", get(provider.UHW{Out: mmap.Bytes(new(abi.SiwUrespAllocCtx))}))
}

func (failing) ImportContext(_ *provider.Device, query func(provider.UHW) error) (provider.Context, error) {
	if err := query(provider.UHW{}); !errors.Is(err, errors.ErrUnsupported) {
		return nil, errDriver
	}
	return failing{}, nil
}

func (failing) AllocPD(alloc func(provider.UHW) error) (provider.Object, error) {
	return nil, after("PD", alloc(provider.UHW{}))
}

func (failing) RegisterMR(_ *provider.MRInit, register func(provider.UHW) error) (provider.Object, error) {
	uhw := provider.UHW{In: mmap.Bytes(new(abi.SiwUreqRegMr)), Out: mmap.Bytes(new(abi.SiwUrespRegMr))}
	return nil, after("MR", register(uhw))
}

func (failing) CreateAH(*provider.AHInit, func(provider.UHW) error) (uint32, provider.Object, error) {
	return 7, nil, after("AH", nil) // without an object in the kernel
}

func (failing) CreateCQ(_ *provider.CQInit, create func(provider.UHW) (provider.CQInfo, error)) (provider.CompletionQueue, error) {
	_, err := create(provider.UHW{Out: mmap.Bytes(new(abi.SiwUrespCreateCq))})
	return &idleCQ{}, after("CQ", err)
}

func (failing) CreateSRQ(_ *provider.SRQInit, create func(provider.UHW) (provider.SRQInfo, error)) (provider.RecvQueue, error) {
	_, err := create(provider.UHW{Out: mmap.Bytes(new(abi.SiwUrespCreateSrq))})
	return nil, after("SRQ", err)
}

func (failing) CreateQP(_ *provider.QPInit, create func(provider.UHW) (provider.QPInfo, error)) (provider.SendQueue, provider.RecvQueue, error) {
	_, err := create(provider.UHW{Out: mmap.Bytes(new(abi.SiwUrespCreateQp))})
	return nil, nil, after("QP", err)
}

func (failing) Release() {}

// idleCQ is a CQ without completions.
type idleCQ struct {
	provider.CompletionQueue
	common provider.Completions
}

func (q *idleCQ) Common() *provider.Completions { return &q.common }
func (*idleCQ) Stop(bool)                       {}
func (*idleCQ) Release()                        {}

// TestFailing opens siw with a driver that fails after each verb: the kernel's objects must
// be destroyed, otherwise their parents could not be closed.
func TestFailing(t *testing.T) {
	if os.Getenv("VERBS_LAB") == "" {
		t.Skip("needs RDMA in the kernel: run by make test, or with go test -exec build/lab")
	}
	defer func() { failAt = "" }()
	expect := func(verb string, run func() error) {
		t.Helper()
		failAt = verb
		if err := run(); !errors.Is(err, errDriver) {
			t.Errorf("%s: %v", verb, err)
		}
		failAt = ""
	}
	expect("context", func() error { _, err := uverbs.Open("siw0"); return err })
	ctx := must(uverbs.Open("siw0"))(t)
	must(uverbs.ImportContext(ctx.FD()))(t)
	expect("PD", func() error { _, err := ctx.AllocPD(); return err })
	pd := must(ctx.AllocPD())(t)
	expect("MR", func() error {
		_, err := pd.AllocMR(4096, verbs.AccessLocalWrite, uverbs.MROptions{})
		return err
	})
	expect("AH", func() error { _, err := pd.CreateAH(verbs.AddressVector{}); return err })
	if ah := must(pd.CreateAH(verbs.AddressVector{}))(t); ah.To(1, 2).AH != 7 {
		t.Errorf("address %+v", ah.To(1, 2))
	}
	expect("CQ", func() error { _, err := ctx.CreateCQ(uverbs.CQOptions{Depth: 8}); return err })
	expect("SRQ", func() error { _, err := pd.CreateSRQ(uverbs.SRQOptions{}); return err })
	cq := must(ctx.CreateCQ(uverbs.CQOptions{Depth: 8}))(t)
	expect("QP", func() error { _, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}); return err })
}
