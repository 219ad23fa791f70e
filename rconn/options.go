package rconn

import (
	"cmp"
	"fmt"
	"log/slog"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// Options configures a connection that is dialed or accepted. The zero value is usable.
// In numbers, zero means the default and a negative value none, where that is possible;
// values out of range are refused with [verbs.ErrRange].
//
// These options of [cm.Options] are absent. Cap is SendQueue, RecvQueue, SGEs and MaxInline.
// SignalAll is a flag of each request here. The Conn accounts for every completion,
// sleeps on the channel of its CQs, and needs its receives in the order in which it
// posted them: so there are no SendCQ and RecvCQ, which other code would poll, no Polled,
// which makes CQs without a channel, and no SRQ, whose receives all its QPs consume.
// There is no SingleThreaded, as several goroutines may use a Conn. There is no
// PortSpace: the one for datagrams has no connections, and that of native InfiniBand
// takes no IP addresses.
type Options struct {
	// PD is a protection domain to share with other connections, or with regions made
	// by [Alloc] and [Register]. It must be on the device that leads to the address,
	// see [cm.Lookup] and Prepare, and outlive the connection. Nil creates one for
	// this connection.
	PD *uverbs.PD
	// SharePD, RetryCount, RNRRetryCount, ResponderResources and InitiatorDepth are as
	// in [cm.Options].
	SharePD                            bool
	RetryCount, RNRRetryCount          int
	ResponderResources, InitiatorDepth int
	// SendQueue and RecvQueue are the numbers of requests that may be in flight, or
	// completed and not taken, in each direction. Zero means 64, the maximum is 4096.
	// RecvQueue may be none.
	SendQueue, RecvQueue int
	// SGEs is the number of spans that a request may have. Zero means 4, the minimum
	// is 1. The device's limit is MaxSGE of its attributes.
	SGEs int
	// MaxInline is the number of bytes of inline data that a request may have. Zero
	// means 64, the minimum is [AdvertSize]. siw takes 80, rxe 512.
	MaxInline int
	// Adverts is the number of advertisements that the peer sends before any other
	// message. Receives for them are posted before it can send, ahead of all others
	// and in addition to RecvQueue. The maximum is 128.
	Adverts int
	// PrivateData is sent to the peer with the request or its acceptance, see
	// [cm.MaxPrivateData].
	PrivateData []byte
	// Prepare, if set, is called when the device that leads to the peer is known and
	// before anything is made on it: the place to choose PD and sizes for that
	// device. It may change all options except Prepare. A dial that tries
	// the next address of a name calls Prepare and Setup again.
	Prepare func(cm.Route, *Options) error
	// Setup, if set, is called when the connection's objects exist and before
	// the peer can send: the place to make regions, and to post receives. The
	// Conn cannot be used for anything else yet.
	Setup func(*Conn) error
	// Logger, if set, logs as in [cm.Options]; in addition failed requests, which
	// break the connection, at level Debug, and invalid advertisements from the peer
	// at level Warn.
	Logger *slog.Logger
}

const (
	defaultQueue  = 64
	maxQueue      = 4096
	defaultSGEs   = 4
	defaultInline = 64
	maxInline     = 4096
)

// recvs returns the number of receives that may be posted, adverts the number of those
// for advertisements in addition.
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
		{"SendQueue", o.SendQueue, 1, maxQueue},
		{"RecvQueue", o.recvs(), 0, maxQueue},
		{"SGEs", o.SGEs, 1, 256},
		{"MaxInline", o.MaxInline, AdvertSize, maxInline},
		{"Adverts", o.adverts(), 0, advertSlots},
	} {
		if f.v < f.min || f.v > f.max {
			return o, fmt.Errorf("option %s is %d: %w: %d to %d", f.name, f.v, verbs.ErrRange, f.min, f.max)
		}
	}
	return o, nil
}

// endpointOptions returns the options for cm. They store the new Conn in c.
func (o *Options) endpointOptions(c **Conn) cm.Options {
	used := *o
	opt := used.baseOptions()
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
			*prepared = used.baseOptions()
			prepared.Setup = setup
			return err
		}
	}
	return opt
}

// baseOptions returns the options for cm, without the callbacks.
func (o *Options) baseOptions() cm.Options {
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
