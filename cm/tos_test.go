//go:build linux

package cm_test

import (
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestDialTOS checks that the QPs of both sides send with the dialer's traffic class.
func TestDialTOS(t *testing.T) {
	labtest.RequireBoth(t)
	ctx := within(t, 20*time.Second)
	l := labtest.Made(cm.Listen(ctx, labtest.Addr+":0"))(t)
	accepted := make(chan *cm.Endpoint, 1)
	go func() {
		defer close(accepted)
		r, err := l.Accept(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		if e, err := r.Accept(ctx, cm.Options{}); err != nil {
			t.Error(err)
		} else {
			accepted <- e
		}
	}()
	const tos = 0x68
	client := labtest.Made((&cm.Dialer{TOS: tos}).Dial(ctx, l.Addr().String()))(t)
	server, ok := <-accepted
	if !ok {
		return
	}
	labtest.Close(t, server)
	for _, e := range []*cm.Endpoint{client, server} {
		if attr := labtest.Must(e.QP.Query())(t); attr.AV.TrafficClass != tos {
			t.Errorf("traffic class %#x, not %#x", attr.AV.TrafficClass, tos)
		}
	}
}
