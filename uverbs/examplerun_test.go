//go:build linux

package uverbs_test

import (
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestExamples runs the examples where there is a device for them. They end
// the test if they fail.
func TestExamples(t *testing.T) {
	a, b := labtest.NewPair(t, labtest.PairOptions{
		OneCQ: true, Events: true, Access: verbs.AccessAll | verbs.AccessMWBind,
	})
	ctx, dev, pd, cq, mr, qp = t.Context(), a.PD.Context(), a.PD, a.SendCQ, a.MR, a.QP
	peer, peerAddr, peerRKey = b.QP, b.MR.Addr(), b.MR.RKey()
	for _, c := range []struct {
		name    string
		example func()
		prints  string
	}{
		{"Example", Example, "hello\n"},
		{"Devices", ExampleDevices, "rxe0 1: CA\nsiw0 4: RNIC\n"},
		{"Open", ExampleOpen, "RoCE v2 false\nRoCE v2 true\nRoCE v2 false\n"},
		{"Probe", ExampleContext_Probe, "datagrams\n"},
		{"PostSend", ExampleQP_PostSend, "in two requests, with one system call\n"},
		{"PostSend_atomic", func() { clear(b.MR.Bytes()[:8]); ExampleQP_PostSend_atomic() }, "0\n1\n2\n"},
		{"BindMW", ExampleQP_BindMW, "the peer may write with the window's key: true\nit may no more\n"},
		{"CreateSRQ", ExamplePD_CreateSRQ, "16 receives for 3 queue pairs\n"},
		{"CreateReplyAH", ExamplePD_CreateReplyAH, "who is there?\nme\n"},
		{"PollWait", ExampleCQ_PollWait, "nothing yet\n<nil>, now\n"},
		{"Arm", ExampleCQ_Arm, "awake\n"},
		{"AsyncEvents", ExampleContext_AsyncEvents, "true\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := labtest.Output(t, c.example); got != c.prints {
				t.Errorf("prints\n%swant\n%s", got, c.prints)
			}
		})
	}
}
