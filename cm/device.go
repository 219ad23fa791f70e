package cm

import (
	"fmt"
	"sync"

	"github.com/goverbs/verbs/uverbs"
)

// home is an open device with a PD, shared by the connections on it that were
// given none.
type home struct {
	ctx   *uverbs.Context
	pd    *uverbs.PD
	users users
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

// acquirePD returns the shared PD of a device and how to give it back.
func acquirePD(r Route) (*uverbs.PD, func(), error) {
	homes.Lock()
	defer homes.Unlock()
	key := deviceKey{r.Device, r.Index}
	h := homes.m[key]
	if h == nil {
		ctx, err := openByGUID(r.Device)
		if err != nil {
			return nil, nil, err
		}
		pd, err := ctx.AllocPD()
		if err != nil {
			ctx.Close()
			return nil, nil, err
		}
		h = &home{ctx: ctx, pd: pd}
		homes.m[key] = h
	}
	h.users.enter()
	return h.pd, func() {
		homes.Lock()
		defer homes.Unlock()
		h.users.leave(&homes, func() {
			// If the program still has objects on the PD, it and its context
			// live until those are closed and the collector finds them.
			delete(homes.m, key)
			if h.pd.Close() == nil {
				h.ctx.Close()
			}
		})
	}, nil
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
