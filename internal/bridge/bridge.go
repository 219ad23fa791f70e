// Package bridge contains functions of packages uverbs and cm for other packages of this module,
// which programs cannot call.
//
// Those packages set them when they start, and import this one, so objects have the type any here.
// An argument of a wrong type panics in the first call.
package bridge

import (
	"context"
	"time"

	"github.com/goverbs/verbs"
)

// DeviceAttr returns the attributes that a *uverbs.Context read when it was opened. They do not
// change, and to query them again mlx5 asks the firmware.
var DeviceAttr func(ctx any) *verbs.DeviceAttr

// LimitCap returns the sizes that a *uverbs.Context's QPs get: fields of asked that are zero become
// those of defaults, or what the device takes if that is less.
var LimitCap func(ctx any, asked, defaults verbs.QPCap) verbs.QPCap

// DefaultCap sets the defaults of *cm.Options for the fields of Cap that are zero, in place of those of
// [verbs.QPCap.WithDefaults].
var DefaultCap func(options any, defaults verbs.QPCap)

// RecycleCQ closes a *uverbs.CQ and returns a new, empty CQ with the same kernel object and
// channel, in a small part of the time of destroying and making one. The new CQ gets no events of
// the old. It fails with verbs.ErrInUse while QPs use the CQ or goroutines wait for its channel,
// and if a program has called CQ.Channel, as it may still use the channel, or its file.
var RecycleCQ func(cq any) (next any, err error)

// OnOverrun makes f be called with the error, at once or later, perhaps twice, when a CQ of a
// *uverbs.QP has overrun. f must not block.
var OnOverrun func(qp any, f func(error))

// HasCompletions reports whether a poll of a *uverbs.CQ would return a completion, or drop one.
var HasCompletions func(cq any) bool

// HoldSends makes the first PostSend of a *uverbs.QP wait for a message from the peer, at most
// until t, on devices where the accepting side must not send first (iWARP). It has no effect on
// other devices, or on QPs with an SRQ.
var HoldSends func(qp any, t time.Time)

// Sleep waits until a *uverbs.CQ, or another one of its channel, has an event, Wake is called, ctx
// ends, the CQ is closed, or the deadline until passes, if it is not zero. It returns the number of
// events, which is 0 after Wake, and [os.ErrDeadlineExceeded] after the deadline. It does not
// report whose events they are: poll and arm every CQ that was armed. It does not allocate as long
// as ctx stays the same. One goroutine at a time may call it, and none may wait for the channel or
// its CQs otherwise.
var Sleep func(cq any, ctx context.Context, until time.Time) (events int, err error)

// KeepAlive calls test with post set every d, for a request that tests the connection of a
// *cm.Endpoint, and some seconds after that without, to look for its failure, until the connection
// ends. The first error ends it and is its reason. It replaces the earlier test, without a new one
// if d is 0.
var KeepAlive func(endpoint any, d time.Duration, test func(post bool) error)

// OnEstablished makes f be called when the peer of a *cm.Request has confirmed that it is
// connected, before Accept knows of it: in the order of these events, by the goroutine that reads
// them. f must not block.
var OnEstablished func(request any, f func())

// Wake ends the current call of Sleep for the CQ's channel, or else the next.
var Wake func(cq any)
