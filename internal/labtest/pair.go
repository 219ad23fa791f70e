//go:build linux

package labtest

import (
	"context"
	"testing"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/rdmatest"
)

// NewPair is [rdmatest.NewPair] with a device of the lab: the first if it has no name.
func NewPair(t testing.TB, device string, opt rdmatest.PairOptions) (a, b *rdmatest.Endpoint) {
	t.Helper()
	ctx := OpenDevice(t, device)
	return rdmatest.NewPair(t, ctx, ctx, opt)
}

// Connect connects two endpoints through a new listener, and returns them. The
// caller must close them.
func Connect(ctx context.Context, t testing.TB, addr string, dial, accept cm.Options) (client, server *cm.Endpoint) {
	t.Helper()
	return ConnectIn(ctx, t, cm.PortSpaceTCP, addr, dial, accept)
}

// ConnectIn is like Connect, in any port space.
func ConnectIn(ctx context.Context, t testing.TB, space cm.PortSpace, addr string, dial, accept cm.Options) (client, server *cm.Endpoint) {
	t.Helper()
	l := Must((&cm.ListenConfig{PortSpace: space}).Listen(ctx, addr))(t)
	defer func() { Check(t, l.Close()) }()
	return DialAccept(t, func() (*cm.Endpoint, error) {
		return (&cm.Dialer{PortSpace: space, Options: dial}).Dial(ctx, l.Addr().String())
	}, func() (*cm.Endpoint, error) {
		r, err := l.Accept(ctx)
		if err != nil {
			return nil, err
		}
		return r.Accept(ctx, accept)
	})
}
