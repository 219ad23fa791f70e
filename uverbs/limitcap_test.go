package uverbs

import (
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/provider"
)

// limited is a driver's part of a context whose sends have more SGEs than its receives.
type limited struct{ provider.Context }

func (limited) MaxSGE() (send, recv int) { return 6, 1 }
func (limited) MaxInline() int           { return 32 }

// outOfLine is a driver's part of a context without inline data.
type outOfLine struct{ provider.Context }

func (outOfLine) MaxInline() int { return 0 }

// TestLimitCap: a default is at most what the device takes, in each direction; a number that a program
// asks for stays as it is.
func TestLimitCap(t *testing.T) {
	defaults := verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 64}
	asked := verbs.QPCap{MaxSendWR: 100, MaxRecvWR: -1, MaxSendSGE: 9, MaxRecvSGE: 3, MaxInline: 40}
	for name, test := range map[string]struct {
		ctx   provider.Context
		attr  verbs.DeviceAttr
		asked verbs.QPCap
		want  verbs.QPCap
	}{
		"limits of the driver":  {limited{}, verbs.DeviceAttr{MaxQPWR: 10, MaxSGE: 1}, verbs.QPCap{}, verbs.QPCap{MaxSendWR: 10, MaxRecvWR: 10, MaxSendSGE: 4, MaxRecvSGE: 1, MaxInline: 32}},
		"limits of the device":  {nil, verbs.DeviceAttr{MaxQPWR: 100, MaxSGE: 3}, verbs.QPCap{}, verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 3, MaxRecvSGE: 3, MaxInline: 64}},
		"no inline data":        {outOfLine{}, verbs.DeviceAttr{}, verbs.QPCap{}, verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: -1}},
		"no limits":             {nil, verbs.DeviceAttr{}, verbs.QPCap{}, defaults},
		"the program's numbers": {limited{}, verbs.DeviceAttr{MaxQPWR: 10, MaxSGE: 1}, asked, asked},
	} {
		c := &contextCore{driverContext: test.ctx, dev: &provider.Device{Attr: test.attr}}
		if got := c.limitCap(test.asked, defaults); got != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}
