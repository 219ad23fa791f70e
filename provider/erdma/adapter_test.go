//go:build linux

package erdma_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/internal/labtest/labdev"
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

// Faults of the emulated adapter: docs/lab.md has them.
const (
	faultNone       = 0
	faultCommand    = 5
	faultCompletion = 6
	faultLost       = 7
	faultOpcode     = 9
	faultQPN        = 10
	faultCounter    = 11
	faultLate       = 12
)

// inject injects a fault once. dir is the folder of the adapter's PCI device.
func inject(t *testing.T, dir string, fault, arg byte) {
	t.Helper()
	const register = 0x44 // of the vendor-specific capability
	f := labtest.Made(os.OpenFile(dir+"/config", os.O_WRONLY, 0))(t)
	labtest.Must(f.WriteAt([]byte{fault, arg, 1, 0}, register))(t)
}

// TestCompletionFaults posts two requests, of which the adapter completes the first as it should not. What
// names no request in flight is dropped, what is late is waited for, and the queue goes on with all of its room. After an
// error the QP takes no more: what is posted is flushed.
func TestCompletionFaults(t *testing.T) {
	device := adapter(t)
	dir := labtest.PCIDir(t, device)
	for name, tt := range map[string]struct {
		fault, arg byte
		first      verbs.WCStatus
		lost       bool // the first has no completion
	}{
		"none":               {fault: faultNone},
		"lost":               {fault: faultLost, lost: true},
		"of another QP":      {fault: faultQPN, arg: 3, lost: true},
		"of another request": {fault: faultCounter, arg: 200, lost: true},
		"unknown opcode":     {fault: faultOpcode, arg: 77},
		"20 ms late":         {fault: faultLate, arg: 20},
		"local key":          {fault: faultCompletion, arg: 10, first: verbs.WCLocAccessErr},
		"unknown status":     {fault: faultCompletion, arg: 99, first: verbs.WCGeneralErr},
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { inject(t, dir, faultNone, 0) }) // what is pending
			a, b := labtest.NewPair(t, device, rdmatest.PairOptions{Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
			var id uint64
			for range 5 { // more than the queue holds, if the faults took room
				inject(t, dir, tt.fault, tt.arg)
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
			inject(t, labtest.PCIDir(t, device), faultCommand, 1)
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
