//go:build linux

package uverbs_test

import (
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
)

// TestExamples runs the examples where there is a device for them. They end
// the test if they fail.
func TestExamples(t *testing.T) {
	a, b := labtest.NewPair(t, labtest.RXE, rdmatest.PairOptions{
		OneCQ: true, Events: true, Access: verbs.AccessAll | verbs.AccessMWBind,
	})
	ctx, dev, pd, cq, mr, qp = t.Context(), a.PD.Context(), a.PD, a.SendCQ, a.MR, a.QP
	peer, peerAddr, peerRKey = b.QP, b.MR.Addr(), b.MR.RKey()
	devices := "rxe0 1: CA\nsiw0 4: RNIC\n"
	if labtest.HasAdapter() {
		devices += "mlx5_0 1: CA\n"
	}
	for _, c := range []struct {
		name    string
		example func()
		prints  string
		lab     bool // of the lab's devices
	}{
		{"Example", Example, "hello\n", false},
		{"Devices", ExampleDevices, devices, true},
		{"Open", ExampleOpen, "RoCE v2 false\nRoCE v2 true\nRoCE v2 false\n", true},
		{"Probe", ExampleContext_Probe, "datagrams\n", false},
		{"RegisterMR", ExamplePD_RegisterMR, "65536 bytes\n", false},
		{"Modify", ExampleQP_Modify, "RTS true\n", false},
		{"PostSend", ExampleQP_PostSend, "in two requests, with one system call\n", false},
		{"PostSend_atomic", func() { clear(b.MR.Bytes()[:8]); ExampleQP_PostSend_atomic() }, "0\n1\n2\n", false},
		{"BindMW", ExampleQP_BindMW, "the peer may write with the window's key: true\nit may no more\n", false},
		{"CreateSRQ", ExamplePD_CreateSRQ, "16 receives for 3 queue pairs\n", false},
		{"CreateReplyAH", ExamplePD_CreateReplyAH, "who is there?\nme\n", false},
		{"PollWait", ExampleCQ_PollWait, "nothing yet\n<nil>, now\n", false},
		{"Arm", ExampleCQ_Arm, "awake\n", false},
		{"AsyncEvents", ExampleContext_AsyncEvents, "true\n", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.lab {
				labtest.RequireKernel(t)
			}
			if got := labtest.Output(t, c.example); got != c.prints {
				t.Errorf("prints\n%swant\n%s", got, c.prints)
			}
		})
	}
}
