//go:build linux

package endpoint_test

import (
	"context"
	"errors"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/endpoint"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestMessage connects both ends in each way and sends a message, whose data it compares.
func TestMessage(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		dev := labtest.OpenDevice(t, device)
		for name, o := range map[string]endpoint.Options{
			"defaults":           {},
			"connection manager": {CM: true},
			"SRQ":                {SRQ: true, Events: true},
			"one CQ":             {OneCQ: true, SignalAll: true},
			"UC":                 {Type: verbs.UC},
			"UD":                 {Type: verbs.UD},
		} {
			t.Run(name, func(t *testing.T) {
				if o.Type != 0 && dev.Device().IWARP() {
					t.Skip("iWARP has RC alone")
				}
				ends := [2]*endpoint.Local{}
				for i := range ends {
					ends[i] = labtest.Made(endpoint.New(endpoint.Port{Dev: dev}, o))(t)
				}
				err := errors.Join(endpoint.Both(func(active bool, swap endpoint.Swap) error {
					if active {
						return send(t.Context(), ends[0], swap)
					}
					return receive(t.Context(), ends[1], swap)
				}))
				if _, addrErr := endpoint.Addr(dev.Device()); o.CM && addrErr != nil && errors.Is(err, errors.ErrUnsupported) {
					t.Skip(err)
				}
				labtest.Check(t, err)
			})
		}
	})
}

const size = 1000

func send(ctx context.Context, l *endpoint.Local, swap endpoint.Swap) error {
	if err := l.Connect(ctx, true, swap); err != nil {
		return err
	}
	l.Fill(1, l.MR.SGE(0, size))
	_, err := swap(endpoint.Address{})
	if err == nil {
		err = l.Do(ctx, verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{l.MR.SGE(0, size)}, To: l.To})
	}
	return err
}

func receive(ctx context.Context, l *endpoint.Local, swap endpoint.Swap) error {
	if err := l.Connect(ctx, false, swap); err != nil {
		return err
	}
	data := l.MR.SGE(verbs.GRHSize, size)
	sgl := []verbs.SGE{data}
	if l.QP.Type() == verbs.UD {
		sgl = []verbs.SGE{l.MR.SGE(0, verbs.GRHSize), data}
	}
	if _, err := l.PostRecv(verbs.RecvWR{SGL: sgl}); err != nil {
		return err
	}
	if _, err := swap(endpoint.Address{}); err != nil {
		return err
	}
	if _, err := l.Wait(ctx, l.RecvCQ); err != nil {
		return err
	}
	if err := l.Compare(1, data); err != nil {
		return err
	}
	l.MR.Bytes()[verbs.GRHSize+3]++
	if l.Compare(1, data) == nil {
		return errors.New("a changed byte is not found")
	}
	return nil
}

// TestOneEndReturns lets one end return, which ends the other one's Swap, once it has all messages.
func TestOneEndReturns(t *testing.T) {
	failed := errors.New("failed")
	for _, early := range []bool{true, false} {
		got := 0
		active, passive := endpoint.Both(func(active bool, swap endpoint.Swap) error {
			if active == early {
				if _, err := swap(endpoint.Address{RKey: 1}); err != nil {
					return err
				}
				return failed
			}
			for {
				a, err := swap(endpoint.Address{})
				if err != nil {
					return err
				}
				got += int(a.RKey)
			}
		})
		if !early {
			active, passive = passive, active
		}
		if active != failed || passive != endpoint.ErrEnded || got != 1 {
			t.Errorf("%v, %v, after %d messages", active, passive, got)
		}
	}
}

// TestCancel ends the wait for a completion by its context.
func TestCancel(t *testing.T) {
	labtest.Require(t)
	l := labtest.Made(endpoint.New(endpoint.Port{Dev: labtest.Open(t)}, endpoint.Options{}))(t)
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stopped)
	if _, err := l.Wait(ctx, l.SendCQ); err != stopped {
		t.Error(err)
	}
}
