// Package softroce is a driver of SoftRoCE, the kernel's rdma_rxe, outside the module of
// the library: it uses only the library's public packages, and not unsafe. It is an example of
// a driver whose queues the kernel allocates, and replaces the built-in driver in programs that import it:
//
//	import _ "example.com/driver/softroce"
//
//	Driver ─► device (Context) ─┬─► object           PD, MR, AH: only counted
//	                            ├─► completionQueue ─┐
//	                            ├─► sendQueue        ├─► ring: a queue mapped from rxe
//	                            └─► recvQueue       ─┘
//
// It implements the operations that the tests need: sends, writes, reads and atomics of
// RC and UD.
package softroce

import (
	"fmt"
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

func init() { provider.Register(Driver{}) }

// Driver is the driver.
type Driver struct{}

// Name implements [provider.Driver].
func (Driver) Name() string { return "softroce" }

// ID implements [provider.Driver].
func (Driver) ID() uint32 { return abi.RDMA_DRIVER_RXE }

// GetContext implements [provider.Driver].
func (Driver) GetContext(dev *provider.Device, get func(provider.UHW) error) (provider.Context, error) {
	if err := get(provider.UHW{}); err != nil {
		return nil, err
	}
	return newDevice(dev)
}

// ImportContext implements [provider.Driver]. rxe has no QUERY_CONTEXT.
func (Driver) ImportContext(dev *provider.Device, _ func(provider.UHW) error) (provider.Context, error) {
	return newDevice(dev)
}

// live counts contexts, objects and queues that have not been released.
var live atomic.Int64

// Live returns how many contexts, objects and queues have not been released.
func Live() int { return int(live.Load()) }

// device is an open device. A driver of hardware would map its doorbell pages here.
type device struct{ *provider.Device }

func newDevice(dev *provider.Device) (provider.Context, error) {
	if dev.Attr.MaxQP == 0 || dev.Port.MaxMessage == 0 {
		return nil, fmt.Errorf("softroce: incomplete device: %+v", dev)
	}
	live.Add(1)
	return device{dev}, nil
}

func (device) Release() { live.Add(-1) }

// object is the driver's object for a PD, MR or AH.
type object struct {
	pd    *object // of an MR or AH
	users atomic.Int64
}

// newObject creates an object by run. It is a PD if pd is nil, and belongs to pd otherwise.
func newObject(pd provider.Object, run func(provider.UHW) error, uhw provider.UHW) (provider.Object, error) {
	if err := run(uhw); err != nil {
		return nil, err
	}
	o := new(object)
	if o.pd, _ = pd.(*object); o.pd != nil { // it is nil for a PD that was imported
		o.pd.users.Add(1)
	}
	live.Add(1)
	return o, nil
}

// Release implements [provider.Object].
func (o *object) Release() {
	if o.users.Load() != 0 {
		panic("softroce: a PD is released before its MRs and AHs")
	}
	if o.pd != nil {
		o.pd.users.Add(-1)
	}
	live.Add(-1)
}

func (device) AllocPD(alloc func(provider.UHW) error) (provider.Object, error) {
	return newObject(nil, alloc, provider.UHW{})
}

func (device) RegisterMR(init *provider.MRInit, register func(provider.UHW) error) (provider.Object, error) {
	return newObject(init.PD, register, provider.UHW{})
}

func (device) CreateAH(init *provider.AHInit, create func(provider.UHW) error) (uint32, provider.Object, error) {
	var resp abi.RxeCreateAhResp
	ah, err := newObject(init.PD, create, provider.UHW{Out: mmap.Bytes(&resp)})
	return resp.AhNum, ah, err
}

func (d device) CreateCQ(_ *provider.CQInit, create func(provider.UHW) (provider.CQInfo, error)) (provider.CompletionQueue, error) {
	var resp abi.RxeCreateCqResp
	info, err := create(provider.UHW{Out: mmap.Bytes(&resp)})
	if err != nil {
		return nil, err
	}
	q := &completionQueue{dev: d.Device, notify: provider.NewNotify(d.Device, info.Handle)}
	if q.ring, err = mapRing(d.Device, &resp.Mi, wcSize); err != nil {
		return nil, err
	}
	q.index = q.consumer()
	q.look()
	live.Add(1)
	return q, nil
}

func (d device) CreateSRQ(_ *provider.SRQInit, create func(provider.UHW) (provider.SRQInfo, error)) (provider.RecvQueue, error) {
	var resp abi.RxeCreateSrqResp
	info, err := create(provider.UHW{Out: mmap.Bytes(&resp)})
	if err != nil {
		return nil, err
	}
	q := &recvQueue{dev: d.Device}
	q.InitShared(d.Device, resp.SrqNum, info.MaxSGE)
	if q.ring, err = mapRing(d.Device, &resp.Mi, recvSize+info.MaxSGE*sgeSize); err != nil {
		return nil, err
	}
	live.Add(1)
	return q, nil
}

func (d device) CreateQP(init *provider.QPInit, create func(provider.UHW) (provider.QPInfo, error)) (provider.SendQueue, provider.RecvQueue, error) {
	if init.Type != verbs.RC && init.Type != verbs.UD {
		return nil, nil, fmt.Errorf("softroce: %v QP: %w", init.Type, verbs.ErrOpcode)
	}
	var resp abi.RxeCreateQpResp
	info, err := create(provider.UHW{Out: mmap.Bytes(&resp)})
	if err != nil {
		return nil, nil, err
	}
	sq := &sendQueue{dev: d.Device, handle: info.Handle}
	sq.InitSends(d.Device, init, info)
	if sq.ring, err = mapRing(d.Device, &resp.SqMi, sendSize+max(sq.MaxSGE*sgeSize, sq.MaxInline)); err != nil {
		return nil, nil, err
	}
	if sq.doorbell, err = provider.NewDoorbell(d.Device, info.Handle, true); err != nil {
		sq.region.Close()
		return nil, nil, err
	}
	if init.SRQ != nil {
		live.Add(1)
		return sq, nil, nil
	}
	rq := &recvQueue{dev: d.Device, handle: info.Handle}
	rq.InitReceives(d.Device, init, info)
	if rq.ring, err = mapRing(d.Device, &resp.RqMi, recvSize+rq.MaxSGE*sgeSize); err != nil {
		sq.doorbell.Close()
		sq.region.Close()
		return nil, nil, err
	}
	live.Add(2)
	return sq, rq, nil
}
