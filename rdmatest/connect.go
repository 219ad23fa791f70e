package rdmatest

import (
	"context"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
)

// timeout bounds what takes milliseconds on a machine that is not busy.
const timeout = time.Minute

// Connect connects two endpoints of a device, which are closed when the test ends.
func Connect(t testing.TB, d Device, dial, accept cm.Options) (client, server *cm.Endpoint) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	l, err := cm.Listen(ctx, d.ListenAddr())
	check(t, err)
	defer closeNow(t, l)
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			server, err = r.Accept(ctx, accept)
		}
		accepted <- err
	}()
	client = made((&cm.Dialer{Options: dial}).Dial(ctx, l.Addr().String()))(t) // the end of ctx ends Accept
	err = <-accepted
	return client, made(server, err)(t)
}
