package rconn

import (
	"cmp"
	"fmt"
	"log/slog"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// Options describe the connection that a dial or an acceptance makes. The zero value is
// usable. Of numbers, zero is the default and a negative one is none, where none is
// possible; one that is out of range is refused with [verbs.ErrRange].
//
// These options of [cm.Options] are absent. Cap is SendQueue, RecvQueue, SGEs and MaxInline.
// SignalAll is a flag of each request here. The Conn accounts for every
// completion, sleeps on its CQs' channel, and takes messages and advertisements in the
// order of its own receives: so there are no SendCQ and RecvCQ, which others would poll,
// no Polled, which makes CQs without a channel, and no SRQ, whose receives come in the
// order of all its QPs. There is no SingleThreaded, as a Conn may be used by several
// goroutines. There is no PortSpace either: in the one for datagrams there are
// no connections, and that of native InfiniBand takes no IP addresses.
type Options struct {
	// PD is one to share with other connections, or with regions made by
	// [Alloc] and [Register]: it must be on the device that leads to the address,
	// see [cm.Lookup] and Prepare, and outlive the connection. Nil makes one for this
	// connection alone.
	PD *uverbs.PD
	// SharePD, RetryCount, RNRRetryCount, ResponderResources and InitiatorDepth are as
	// in [cm.Options].
	SharePD                            bool
	RetryCount, RNRRetryCount          int
	ResponderResources, InitiatorDepth int
	// SendQueue and RecvQueue are how many requests may be under way, or have
	// completed and not been taken, each way; zero is 64, the most is 4096. RecvQueue
	// may be none.
	SendQueue, RecvQueue int
	// SGEs is how many spans a request may have; zero is 4, the least is 1. The device's
	// most is MaxSGE of its attributes.
	SGEs int
	// MaxInline is how many bytes of inline data a request may have; zero is 64, the least
	// is [AdvertSize]. siw takes 80, rxe 512.
	MaxInline int
	// Adverts is how many advertisements the peer sends before any other
	// message. Receives for them are posted before it can, ahead of all others
	// and in addition to RecvQueue. The most is 128.
	Adverts int
	// PrivateData goes to the peer with the request or its acceptance, see
	// [cm.MaxPrivateData].
	PrivateData []byte
	// Prepare, if set, is called when the device that leads to the peer is known and
	// before anything is made on it: the place to choose PD and sizes for that device. It
	// may change all options but Prepare. A dial that tries again calls it again, as it
	// does Setup.
	Prepare func(cm.Route, *Options) error
	// Setup, if set, is called when the connection's objects exist and before
	// the peer can send: the place to make regions, and to post receives. The
	// Conn cannot be used for anything else yet.
	Setup func(*Conn) error
	// Logger, if set, logs what [cm.Options] say, at level Debug that a request has
	// failed, which ends the connection, and at level Warn that the peer sent no valid
	// advertisement.
	Logger *slog.Logger
}

const (
	defaultQueue  = 64
	mostQueue     = 4096
	defaultSGEs   = 4
	defaultInline = 64
	mostInline    = 4096
)

// recvs is how many receives may be under way, adverts how many for advertisements there
// are in addition.
func (o *Options) recvs() int   { return max(o.RecvQueue, 0) }
func (o *Options) adverts() int { return max(o.Adverts, 0) }

// withDefaults returns the options with their zero values replaced.
func (o Options) withDefaults() (Options, error) {
	o.SendQueue = cmp.Or(o.SendQueue, defaultQueue)
	o.RecvQueue = cmp.Or(o.RecvQueue, defaultQueue)
	o.SGEs = cmp.Or(o.SGEs, defaultSGEs)
	o.MaxInline = cmp.Or(o.MaxInline, defaultInline)
	for _, f := range []struct {
		name        string
		v, min, max int
	}{
		{"SendQueue", o.SendQueue, 1, mostQueue},
		{"RecvQueue", o.recvs(), 0, mostQueue},
		{"SGEs", o.SGEs, 1, 256},
		{"MaxInline", o.MaxInline, AdvertSize, mostInline},
		{"Adverts", o.adverts(), 0, advertSlots},
	} {
		if f.v < f.min || f.v > f.max {
			return o, fmt.Errorf("option %s is %d: %w: %d to %d", f.name, f.v, verbs.ErrRange, f.min, f.max)
		}
	}
	return o, nil
}

// endpoint returns the options for cm of a Conn that will be in c.
func (o *Options) endpoint(c **Conn) cm.Options {
	used := *o
	opt := used.forCM()
	opt.Setup = func(e *cm.Endpoint) (err error) {
		*c, err = newConn(e, used)
		return err
	}
	if o.Prepare != nil {
		opt.Prepare = func(route cm.Route, prepared *cm.Options) (err error) {
			used = *o
			if err = o.Prepare(route, &used); err == nil {
				used, err = used.withDefaults()
			}
			setup := prepared.Setup
			*prepared = used.forCM()
			prepared.Setup = setup
			return err
		}
	}
	return opt
}

// forCM returns what the options are for cm, without its callbacks.
func (o *Options) forCM() cm.Options {
	recvs := o.recvs() + o.adverts()
	if recvs == 0 {
		recvs = -1 // none
	}
	return cm.Options{
		PD: o.PD, SharePD: o.SharePD, PrivateData: o.PrivateData, Logger: o.Logger,
		RetryCount: o.RetryCount, RNRRetryCount: o.RNRRetryCount,
		ResponderResources: o.ResponderResources, InitiatorDepth: o.InitiatorDepth,
		Cap: verbs.QPCap{
			MaxSendWR: o.SendQueue, MaxRecvWR: recvs,
			MaxSendSGE: o.SGEs, MaxRecvSGE: o.SGEs, MaxInline: o.MaxInline,
		},
	}
}
