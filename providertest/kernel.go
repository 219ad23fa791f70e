package providertest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/provider"
)

// Kernel plays the kernel, and the card's driver in it, for one device. Fill in its fields before the first
// method is called.
//
// The functions are the kernel driver's answers, each to one verb: they get the driver's private part,
// which [Request] decodes and [Answer] fills, and may change what the kernel would say, as rounding
// up a size. A nil function accepts the verb, and has no private part. They return nil or the
// [syscall.Errno] with which the verb fails. They run one at a time, and must not call the Kernel.
type Kernel struct {
	ID    uint32           // the driver's, enum rdma_driver_id
	Attr  verbs.DeviceAttr // limits, of which drivers use some; Ports is 1 if it is zero
	Port  verbs.PortAttr
	IWARP bool

	// Registers are the pages of the device file from offset 0 on, which drivers map. Mmap, if it is
	// not nil, returns the others; without it mapping them fails.
	Registers []byte
	Mmap      func(offset int64, length int) ([]byte, error)

	GetContext func(u provider.UHW) error
	AllocPD    func(handle uint32, u provider.UHW) error
	RegisterMR func(handle uint32, u provider.UHW) error
	CreateAH   func(handle uint32, u provider.UHW) error
	CreateCQ   func(cq *provider.CQInfo, u provider.UHW) error   // cq.Depth is what the driver wants
	CreateSRQ  func(srq *provider.SRQInfo, u provider.UHW) error // likewise
	CreateQP   func(qp *QP, u provider.UHW) error                // likewise; qp.QPNum is a number that the Kernel proposes
	ModifyQP   func(handle uint32, state verbs.QPState, u provider.UHW) error
	ResizeCQ   func(handle uint32, depth int, u provider.UHW) error

	// Ioctl answers methods on objects that only this driver has, as mlx5's UAR. If it is nil there are
	// none. See [Call].
	Ioctl func(c *Call) error

	mu      sync.Mutex
	last    uint32 // handle
	objects map[uint32]*object
	cqs     map[provider.CompletionQueue]uint32 // handles of those that NewCQ has made
}

// QP is a QP that the kernel makes.
type QP struct {
	provider.QPInfo
	SendCQ, RecvCQ uint32 // handles
}

// object is what a handle names.
type object struct {
	kind    uint16       // UVERBS_OBJECT_*
	channel *channelFile // of a CQ, or nil
	user    uint64       // uverbs' name for it
}

// Register makes the Kernel a device of this process with a name, which uverbs.Open opens. remove ends
// that: it closes nothing.
func (k *Kernel) Register(name string) (remove func(), err error) {
	d := &host.Device{
		Name: name, Attrs: map[string]string{"ibdev": name, "node_type": "1: CA", "node_guid": "0000:0000:0000:0000", "ports/1/state": "4: ACTIVE"}, Open: k.open,
		Objects: func(int) [][]byte { return nil },
	}
	if k.IWARP {
		d.Attrs["node_type"] = "4: RNIC"
	}
	if err := host.Reserve(d); err != nil {
		return nil, fmt.Errorf("register device: %w", err)
	}
	host.Register(d)
	return func() { host.Unregister(d) }, nil
}

// Device opens the Kernel's device for a driver that is called without package uverbs, as its own
// tests do: pass it and [Kernel.Context] to the driver. It is closed when the test ends.
func (k *Kernel) Device(t testing.TB) *provider.Device {
	t.Helper()
	f, errno := k.open()
	fd := -1
	if errno == 0 {
		fd, errno = host.Install(f, "providertest")
	}
	if errno != 0 {
		t.Fatal(errno)
	}
	t.Cleanup(func() { host.Close(fd) })
	return &provider.Device{FD: fd, Driver: k.ID, Attr: k.Attr, Port: k.Port, IWARP: k.IWARP}
}

// Context runs GET_CONTEXT: it is the function for GetContext of a [provider.Driver].
func (k *Kernel) Context(u provider.UHW) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return ask(k.GetContext, u)
}

// NewPD makes a PD by a driver's context.
func (k *Kernel) NewPD(c provider.Context) (provider.Object, error) {
	return c.AllocPD(func(u provider.UHW) error {
		_, err := k.create(abi.UVERBS_OBJECT_PD, u, k.AllocPD)
		return err
	})
}

// NewCQ makes a CQ by a driver's context.
func (k *Kernel) NewCQ(c provider.Context, init *provider.CQInit) (provider.CompletionQueue, error) {
	var info provider.CQInfo
	q, err := c.CreateCQ(init, func(u provider.UHW) (provider.CQInfo, error) {
		info.Depth = init.Depth
		err := k.createCQ(object{}, &info, u)
		return info, err
	})
	if err == nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.cqs == nil {
			k.cqs = map[provider.CompletionQueue]uint32{}
		}
		k.cqs[q] = info.Handle
	}
	return q, err
}

// NewSRQ makes an SRQ by a driver's context.
func (k *Kernel) NewSRQ(c provider.Context, init *provider.SRQInit) (provider.RecvQueue, error) {
	return c.CreateSRQ(init, func(u provider.UHW) (provider.SRQInfo, error) {
		info := provider.SRQInfo{MaxWR: init.MaxWR, MaxSGE: init.MaxSGE}
		err := k.createSRQ(&info, u)
		return info, err
	})
}

// NewQP makes a QP by a driver's context, in state RESET, with CQs of NewCQ. [SetState] moves it.
func (k *Kernel) NewQP(c provider.Context, init *provider.QPInit) (provider.SendQueue, provider.RecvQueue, error) {
	return c.CreateQP(init, func(u provider.UHW) (provider.QPInfo, error) {
		k.mu.Lock()
		qp := QP{provider.QPInfo{Cap: init.Cap}, k.cqs[init.SendCQ], k.cqs[init.RecvCQ]}
		k.mu.Unlock()
		err := k.createQP(&qp, u)
		return qp.QPInfo, err
	})
}

// SetState moves a QP to a state, without the kernel, as package uverbs does around MODIFY_QP. recv
// is nil if the QP has an SRQ.
func SetState(send provider.SendQueue, recv provider.RecvQueue, s verbs.QPState) {
	if recv != nil {
		recv.Suspend()
		defer recv.Settle(s, true)
	}
	send.Suspend()
	send.Settle(s, true)
}

// Objects returns how many objects the Kernel has made that have not been destroyed.
func (k *Kernel) Objects() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.objects)
}

// Event delivers a completion event of the CQ with a handle to its completion channel, as the card does
// when an armed CQ gets a completion. It does nothing if the CQ has no channel.
func (k *Kernel) Event(cq uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if o := k.objects[cq]; o != nil && o.channel != nil {
		o.channel.add(o.user)
	}
}
