package cm

import (
	"fmt"
	"sync"

	"github.com/goverbs/verbs/uverbs"
)

// home is an open device with a PD, shared by the connections on it that were
// given none.
type home struct {
	ctx  *uverbs.Context
	pd   *uverbs.PD
	refs int
}

var homes = struct {
	sync.Mutex
	m map[uverbs.GUID]*home
}{m: map[uverbs.GUID]*home{}}

// acquirePD returns the shared PD of a device and how to give it back.
func acquirePD(guid uverbs.GUID) (*uverbs.PD, func(), error) {
	homes.Lock()
	defer homes.Unlock()
	h := homes.m[guid]
	if h == nil {
		ctx, err := openByGUID(guid)
		if err != nil {
			return nil, nil, err
		}
		pd, err := ctx.AllocPD()
		if err != nil {
			ctx.Close()
			return nil, nil, err
		}
		h = &home{ctx: ctx, pd: pd}
		homes.m[guid] = h
	}
	h.refs++
	return h.pd, func() {
		homes.Lock()
		defer homes.Unlock()
		if h.refs--; h.refs > 0 {
			return
		}
		// If the program still has objects on the PD, it and its context
		// live until those are closed and the collector finds them.
		delete(homes.m, guid)
		if h.pd.Close() == nil {
			h.ctx.Close()
		}
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
