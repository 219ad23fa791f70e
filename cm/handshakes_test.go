package cm

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestHandshakesBusy dials an iWARP listener with which as many handshakes as allowed are in
// progress: the error does not say that the listener has not answered this one.
func TestHandshakesBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &Endpoint{iwarp: true}
		tr := new(Transport)
		for range maxIWARPHandshakes {
			if _, err := tr.startHandshake(t.Context(), time.Time{}, e.route.Remote); err != nil {
				t.Fatal(err)
			}
		}
		why := errors.New("the program ends")
		cancelled, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(why) })
		d := Dialer{Transport: tr, ConnectTimeout: 2 * time.Second}
		for _, test := range []struct {
			ctx  context.Context
			want error
		}{{cancelled, why}, {t.Context(), context.DeadlineExceeded}} {
			abandoned, err := d.connect(test.ctx, e)
			if abandoned || !errors.Is(err, test.want) || strings.Contains(err.Error(), "no answer") {
				t.Errorf("abandoned %v: %v, not %v", abandoned, err, test.want)
			}
		}
	})
}
