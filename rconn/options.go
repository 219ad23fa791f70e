package rconn

import (
	"errors"
	"fmt"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/bridge"
	"github.com/goverbs/verbs/internal/option"
)

// Options configures a connection that is dialed or accepted. The zero value is usable.
//
// The Conn accounts for every completion, sleeps on the channel of its CQs, and may be used by
// several goroutines: with SendCQ, RecvCQ, SRQ, Polled, SignalAll, SingleThreaded or the Setup of
// package cm, dialing and accepting fail with an error that matches [errors.ErrUnsupported].
type Options struct {
	// Cap.MaxSendWR and Cap.MaxRecvWR are the numbers of requests that may be in flight, or
	// completed and not taken: by default 64, at most 4096; a negative MaxRecvWR means none.
	// MaxInline is at least [AdvertSize], by default 64. Prepare finds these defaults in its
	// options. A request may have MaxSendSGE or MaxRecvSGE spans, by default 4, or as many as the
	// device takes if these are fewer. Logger also logs failed requests at level Debug, and invalid
	// advertisements at level Warn.
	//
	// KeepAlive is 15 s if zero, and none if negative. The program sees nothing of it but the end
	// of the connection.
	cm.Options
	// Adverts is the number of advertisements that the peer sends before any other message,
	// at most 128. Receives for them are posted before it can send, ahead of all others.
	Adverts int
	// Setup, if set, is called before the peer can send, to make and announce regions, and to
	// post receives.
	Setup func(*Conn) error
}

const (
	maxQueue  = 4096
	maxInline = 4096

	defaultSGE = 4
)

func (o Options) withDefaults() (Options, error) {
	if o.Options.Setup != nil || o.SendCQ != nil || o.RecvCQ != nil || o.SRQ != nil || o.Polled || o.SignalAll || o.SingleThreaded {
		return o, fmt.Errorf("rconn does not support SendCQ, RecvCQ, SRQ, Polled, SignalAll, SingleThreaded and the Setup of package cm: %w", errors.ErrUnsupported)
	}
	size, recvs := &o.Cap, o.Cap.MaxRecvWR
	sendSGE, recvSGE := size.MaxSendSGE, size.MaxRecvSGE // which stay zero until the device is known
	err := option.Set(
		option.Size("Cap.MaxSendWR", &size.MaxSendWR, 64, 1, maxQueue),
		option.Size("Cap.MaxRecvWR", &recvs, 64, 0, maxQueue),
		option.Size("Cap.MaxSendSGE", &sendSGE, defaultSGE, 1, 256),
		option.Size("Cap.MaxRecvSGE", &recvSGE, defaultSGE, 1, 256),
		option.Size("Cap.MaxInline", &size.MaxInline, 64, AdvertSize, maxInline),
		option.Size("Adverts", &o.Adverts, 0, 0, advertSlots),
	)
	if size.MaxRecvWR = recvs; recvs == 0 {
		size.MaxRecvWR = -1 // none
	}
	return o, err
}

// lower returns the options for cm, which store the new Conn in c.
func (o Options) lower(c **Conn) (cm.Options, error) {
	o, err := o.withDefaults()
	low := o.Options
	low.KeepAlive = 0   // the Conn's own
	low.Cap.MaxSendWR++ // for it
	if low.Cap.MaxRecvWR = max(low.Cap.MaxRecvWR, 0) + o.Adverts; low.Cap.MaxRecvWR == 0 {
		low.Cap.MaxRecvWR = -1 // none
	}
	bridge.DefaultCap(&low, verbs.QPCap{MaxSendSGE: defaultSGE, MaxRecvSGE: defaultSGE})
	low.Setup = func(e *cm.Endpoint) (err error) {
		(*c).discard() // of an address before
		*c, err = newConn(e, &o)
		return err
	}
	if o.Prepare != nil {
		low.Prepare = func(route cm.Route, prepared *cm.Options) error {
			used := o
			err := o.Prepare(route, &used.Options)
			if err == nil {
				*prepared, err = used.lower(c)
			}
			return err
		}
	}
	return low, err
}
