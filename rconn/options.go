package rconn

import (
	"fmt"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// Options describe the connection that a dial or an acceptance makes. The zero value is
// usable. Of numbers, zero is the default, and one that is out of range is refused with
// [verbs.ErrRange].
type Options struct {
	// PD is one to share with other connections, or with regions made by
	// [Alloc] and [Register]: it must be on the device that the address leads
	// to, and outlive the connection. Nil makes one for this connection alone.
	PD *uverbs.PD
	// SharePD, RetryCount, RNRRetryCount, ResponderResources and InitiatorDepth are as
	// in [cm.Options].
	SharePD                            bool
	RetryCount, RNRRetryCount          int
	ResponderResources, InitiatorDepth int
	// SendQueue and RecvQueue are how many requests may be under way, or have
	// completed and not been taken, each way; zero is 64, the most is 4096.
	SendQueue, RecvQueue int
	// SGEs is how many spans a request may have; zero is 4. The device's most
	// is MaxSGE of its attributes.
	SGEs int
	// Adverts is how many advertisements the peer sends before any other
	// message. Receives for them are posted before it can, ahead of all others
	// and in addition to RecvQueue.
	Adverts int
	// PrivateData goes to the peer with the request or its acceptance, see
	// [cm.MaxPrivateData].
	PrivateData []byte
	// Setup, if set, is called when the connection's objects exist and before
	// the peer can send: the place to make regions, and to post receives. The
	// Conn is good for nothing else yet. A dial that tries again calls it again.
	Setup func(*Conn) error
}

const (
	defaultQueue = 64
	mostQueue    = 4096
	defaultSGEs  = 4
	inline       = 64 // bytes; an advertisement fits
)

// withDefaults returns the options with their zero values replaced.
func (o Options) withDefaults() (Options, error) {
	if o.SendQueue == 0 {
		o.SendQueue = defaultQueue
	}
	if o.RecvQueue == 0 {
		o.RecvQueue = defaultQueue
	}
	if o.SGEs == 0 {
		o.SGEs = defaultSGEs
	}
	for _, f := range []struct {
		name        string
		v, min, max int
	}{
		{"SendQueue", o.SendQueue, 1, mostQueue},
		{"RecvQueue", o.RecvQueue, 1, mostQueue},
		{"SGEs", o.SGEs, 1, 256},
		{"Adverts", o.Adverts, 0, advertSlots},
	} {
		if f.v < f.min || f.v > f.max {
			return o, fmt.Errorf("option %s is %d: %w: %d to %d", f.name, f.v, verbs.ErrRange, f.min, f.max)
		}
	}
	return o, nil
}

// endpoint is what cm is to make. setup gets what it made.
func (o *Options) endpoint(setup func(*cm.Endpoint) error) cm.Options {
	return cm.Options{
		PD: o.PD, SharePD: o.SharePD, PrivateData: o.PrivateData, Setup: setup,
		RetryCount: o.RetryCount, RNRRetryCount: o.RNRRetryCount,
		ResponderResources: o.ResponderResources, InitiatorDepth: o.InitiatorDepth,
		Cap: verbs.QPCap{
			MaxSendWR: o.SendQueue, MaxRecvWR: o.RecvQueue + o.Adverts,
			MaxSendSGE: o.SGEs, MaxRecvSGE: o.SGEs, MaxInline: inline,
		},
	}
}
