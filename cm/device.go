package cm

import (
	"fmt"
	"sync"

	"github.com/goverbs/verbs/uverbs"
)

// home is an open device with a PD, shared by the connections on it that were
// given none.
type home struct {
	key   deviceKey
	ctx   *uverbs.Context
	pd    *uverbs.PD
	users users
	cqs   idleCQs
	over  func() // drop
}

// deviceKey tells devices apart: one that is made anew has its GUID again.
type deviceKey struct {
	guid  uverbs.GUID
	index int
}

var homes = struct {
	sync.Mutex
	m map[deviceKey]*home
}{m: map[deviceKey]*home{}}

// acquireHome returns the home on a device, to be given back with release.
func acquireHome(r Route) (*home, error) {
	homes.Lock()
	defer homes.Unlock()
	key := deviceKey{r.Device, r.Index}
	h := homes.m[key]
	if h == nil {
		ctx, err := openByGUID(r.Device)
		if err != nil {
			return nil, err
		}
		pd, err := ctx.AllocPD()
		if err != nil {
			ctx.Close()
			return nil, err
		}
		h = &home{key: key, ctx: ctx, pd: pd}
		h.over = h.drop
		homes.m[key] = h
	}
	h.users.enter()
	return h, nil
}

func (h *home) release() {
	homes.Lock()
	defer homes.Unlock()
	h.users.leave(&homes, h.over)
}

// drop closes the home. If the program still has objects on the PD, it and its
// context live until those are closed and the collector finds them.
func (h *home) drop() {
	delete(homes.m, h.key)
	h.cqs.close()
	if h.pd.Close() == nil {
		h.ctx.Close()
	}
}

func openByGUID(guid uverbs.GUID) (*uverbs.Context, error) {
	d, err := deviceByGUID(guid)
	if err != nil {
		return nil, err
	}
	return d.Open()
}

func deviceByGUID(guid uverbs.GUID) (uverbs.Device, error) {
	devs, err := uverbs.Devices()
	if err != nil {
		return uverbs.Device{}, err
	}
	for _, d := range devs {
		if d.GUID == guid {
			return d, nil
		}
	}
	return uverbs.Device{}, fmt.Errorf("GUID %v: %w", guid, uverbs.ErrNoDevice)
}
