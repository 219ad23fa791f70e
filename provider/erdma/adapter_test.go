//go:build linux

package erdma_test

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/internal/labtest/labdev"
	"github.com/goverbs/verbs/lab/connectx"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// adapter returns the emulated erdma.
func adapter(t *testing.T) (device string) {
	t.Helper()
	labtest.RequireKernel(t)
	for _, device := range labdev.Adapters(labtest.Adapters()) {
		if labtest.IsERDMA(device) {
			return device
		}
	}
	t.Skip("needs an erdma: run by make test-nic, or with rdmalab --nic erdma test")
	return ""
}

// TestCompletionFaults posts two requests, of which the adapter completes the first as it should not. What
// names no request in flight is dropped, what is late is waited for, and the queue goes on with all of its room. After an
// error the QP takes no more: what is posted is flushed.
func TestCompletionFaults(t *testing.T) {
	device := adapter(t)
	dir := labtest.PCIDir(t, device)
	for name, tt := range map[string]struct {
		fault connectx.Fault
		arg   byte
		first verbs.WCStatus
		lost  bool // the first has no completion
	}{
		"none":               {fault: connectx.FaultNone},
		"lost":               {fault: connectx.FaultLost, lost: true},
		"of another QP":      {fault: connectx.FaultQPN, arg: 3, lost: true},
		"of another request": {fault: connectx.FaultCounter, arg: 200, lost: true},
		"unknown opcode":     {fault: connectx.FaultOpcode, arg: 77},
		"20 ms late":         {fault: connectx.FaultLate, arg: 20},
		"local key":          {fault: connectx.FaultCompletion, arg: 10, first: verbs.WCLocAccessErr},
		"unknown status":     {fault: connectx.FaultCompletion, arg: 99, first: verbs.WCGeneralErr},
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { labtest.Check(t, connectx.Inject(dir, connectx.FaultNone, 0, 0)) }) // what is pending
			a, b := labtest.NewPair(t, device, rdmatest.PairOptions{Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
			var id uint64
			for range 5 { // more than the queue holds, if the faults took room
				labtest.Check(t, connectx.Inject(dir, tt.fault, tt.arg, 1))
				for i, status := range []verbs.WCStatus{tt.first, verbs.WCSuccess} {
					id++
					labtest.Must(a.QP.PostSend(verbs.SendWR{
						ID: id, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.MR.SGE(0, 8)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey(),
					}))(t)
					if i == 0 && tt.lost {
						continue
					}
					if tt.first != verbs.WCSuccess && id > 1 {
						status = verbs.WCFlushErr
					}
					if wc := poll(t, a.SendCQ); wc.ID != id || wc.Status != status || wc.QPNum != a.QP.Num() {
						t.Fatalf("%+v, want %d with status %v", wc, id, status)
					}
				}
			}
		})
	}
}

func poll(t *testing.T, cq *uverbs.CQ) verbs.WC {
	t.Helper()
	var wcs [1]verbs.WC
	labtest.Until(t, "a completion", func() bool { return cq.Poll(wcs[:]) == 1 })
	return wcs[0]
}

// TestCommandFault makes the adapter refuse a command: the call fails, and the next one does not.
func TestCommandFault(t *testing.T) {
	device := adapter(t)
	ctx := labtest.OpenDevice(t, device)
	for i, want := range []error{unix.EIO, nil, nil} {
		if i == 0 {
			labtest.Check(t, connectx.Inject(labtest.PCIDir(t, device), connectx.FaultCommand, 1, 1))
		}
		cq, err := ctx.CreateCQ(uverbs.CQOptions{Depth: 64})
		if !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Fatal(fmt.Errorf("CQ %d: %w, want %v", i, err, want))
		}
		if err == nil {
			labtest.Check(t, cq.Close())
		}
	}
}
