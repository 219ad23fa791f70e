package engine

import (
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/roce"
)

// TestWindowOfPath: a QP that is connected again knows nothing of the new path.
func TestWindowOfPath(t *testing.T) {
	net := newTestNetwork(1, faults{})
	x, y := pair(newNode(t, net, 64, addrA), newNode(t, net, 64, addrB), verbs.RC)
	x.requester.window.loss(0, false)
	if x.requester.window == (window{}) {
		t.Fatal("no loss is known")
	}
	x.mustModify(&verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState)
	x.connect(y)
	if w := x.requester.window; w != (window{}) {
		t.Errorf("window %+v of another path", w)
	}
}

// TestWindow acknowledges and loses packets.
func TestWindow(t *testing.T) {
	var w window
	if got := w.limit(false); got != initialWindow {
		t.Errorf("initial window %d", got)
	}
	if got := w.limit(true); got != maxWindow {
		t.Errorf("window to the device itself %d", got)
	}
	psn := roce.PSN(0xffff00)
	ack := func(n int) {
		psn = psn.Add(n)
		w.ack(n, psn, psn.Add(100))
	}
	want := func(size int) {
		t.Helper()
		if got := w.limit(false); got != size {
			t.Errorf("window %d, want %d", got, size)
		}
	}
	ack(20)
	want(initialWindow + 20)
	ack(1000)
	want(maxWindow)
	w.loss(psn.Add(100), false)
	want(maxWindow / 2)
	w.loss(psn.Add(100), false) // of the same flight
	want(maxWindow / 2)
	ack(99)
	want(maxWindow / 2)
	ack(1) // the flight with the loss ends
	ack(maxWindow/2 - 2)
	want(maxWindow / 2)
	ack(1)
	want(maxWindow/2 + 1)
	w.loss(psn.Add(10), true)
	want(2 * minWindow)
	for range 20 {
		w.loss(psn.Add(10), true)
		ack(10)
		w.loss(psn.Add(10), false)
		ack(10)
	}
	if got := w.limit(false); got < minWindow {
		t.Errorf("window %d after many losses", got)
	}
	w.probing = true
	want(1)
	ack(1)
	if w.probing {
		t.Error("still probing")
	}
}

// TestLossProbe measures round trips.
func TestLossProbe(t *testing.T) {
	var p lossProbe
	if p.interval() != 0 {
		t.Error("interval before the first measurement")
	}
	p.sent(10, time.Second)
	p.sent(20, 2*time.Second)
	p.acked(9, 3*time.Second)
	if p.interval() != 0 {
		t.Error("interval after another packet has been acknowledged")
	}
	p.acked(10, time.Second+10*time.Millisecond)
	if got := p.interval(); got != 40*time.Millisecond {
		t.Errorf("interval %v", got)
	}
	p.shift = 2
	if got := p.interval(); got != 160*time.Millisecond {
		t.Errorf("interval %v", got)
	}
	p.sent(11, 0)
	p.acked(11, 2*time.Millisecond)
	if got := p.interval(); got != 36*time.Millisecond {
		t.Errorf("interval %v", got)
	}
	p.trip = 1
	if got := p.interval(); got != minProbe {
		t.Errorf("interval %v", got)
	}
}
