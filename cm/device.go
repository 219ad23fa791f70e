package cm

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// home is an open device with a PD, shared by the connections on it that were
// given none.
type home struct {
	index int // in homes: a device that is made again has its GUID again
	ctx   *uverbs.Context
	pd    *uverbs.PD
	users users
	cqs   idleCQs
	inits sync.Map // initAnswer by initQuestion
	over  func()   // drop
	logs  bool     // ctx has the logger of a connection
}

var homes = struct {
	sync.Mutex
	m map[int]*home
}{m: map[int]*home{}}

// acquireHome returns the home on a device, to be given back with release. Its context
// logs to the first logger there is.
func acquireHome(r Route, log *slog.Logger) (*home, error) {
	homes.Lock()
	defer homes.Unlock()
	h := homes.m[r.Index]
	if h == nil {
		d, err := r.FindDevice()
		if err != nil {
			return nil, err
		}
		ctx, err := d.Open()
		if err != nil {
			return nil, err
		}
		h = &home{index: r.Index, ctx: ctx}
		h.over = h.drop
		homes.m[r.Index] = h
	}
	if log != nil && !h.logs {
		h.logs = true
		h.ctx.SetLogger(log)
	}
	h.users.enter()
	if h.pd == nil {
		var err error
		if h.pd, err = h.ctx.AllocPD(); err != nil {
			h.users.leave(&homes, h.over)
			return nil, err
		}
	}
	return h, nil
}

func (h *home) release() {
	homes.Lock()
	defer homes.Unlock()
	h.users.leave(&homes, h.over)
}

// drop closes the home. If the program still has objects on the device, it is tried
// again later.
func (h *home) drop() {
	h.cqs.close()
	if h.pd != nil && h.pd.Close() == nil {
		h.pd = nil
	}
	if h.pd == nil && h.ctx.Close() == nil {
		delete(homes.m, h.index)
		return
	}
	h.users.enter()
	h.users.leave(&homes, h.over)
}

// FindDevice returns the device that the route leads to: the one with its index, as
// two devices on one network interface have the same GUID. A process that may not
// use netlink, which knows the index, finds devices whose GUID is unique.
func (r Route) FindDevice() (uverbs.Device, error) {
	devs, err := uverbs.Devices()
	if err != nil {
		return uverbs.Device{}, err
	}
	devs = slices.DeleteFunc(devs, func(d uverbs.Device) bool { return d.GUID != r.Device })
	err = verbs.ErrNoDevice
	for _, d := range devs {
		switch i, ierr := d.Index(); {
		case ierr == nil && i == r.Index:
			return d, nil
		case ierr != nil && !errors.Is(ierr, verbs.ErrNoDevice):
			err = ierr
		}
	}
	if len(devs) == 1 && err != verbs.ErrNoDevice {
		return devs[0], nil
	}
	return uverbs.Device{}, fail("find", fmt.Sprintf("device %d with GUID %v", r.Index, r.Device), err)
}
