package engine

import "github.com/goverbs/verbs/internal/roce"

// window limits the packets of an RC requester that are not acknowledged. It doubles per round trip
// at first, then grows by one packet per round trip, and halves on a loss, as TCP's does. rxe has a
// constant window (RXE_MAX_UNACKED_PSNS), which overruns the buffers of sockets. InfiniBand leaves
// congestion to a network that loses nothing (Annex A17.9.1 for RoCE v2), so its transport has no
// such window; its end-to-end credits count receives, not packets.
type window struct {
	size     int // packets; 0: initial
	slow     int // the size from which it grows slowly
	acked    int // packets acknowledged since it grew last
	recovers roce.PSN
	lossy    bool // packets before recovers may be lost for the same reason
	probing  bool // one packet is sent, to find out whether there was a loss
}

// limit returns the window of a path.
func (w *window) limit(local bool) int {
	switch {
	case w.probing:
		return 1
	case local:
		return maxWindow
	case w.size == 0:
		return initialWindow
	}
	return w.size
}

// ack grows the window by n acknowledged packets. The next one is una, the last one that has
// been sent is before top.
func (w *window) ack(n int, una, top roce.PSN) {
	if w.probing {
		w.probing = false
		// The probe repeated the oldest packet. If the original had arrived, and with it others,
		// the answer would acknowledge them all.
		if n == 1 && una != top { // the packets behind the probe are lost
			w.loss(top, false)
		}
	}
	if w.size == 0 {
		w.size, w.slow = initialWindow, maxWindow
	}
	// All that was sent before the loss was noticed is acknowledged, so another loss is a new one,
	// as with NewReno's recovery point.
	if w.lossy && !una.Before(w.recovers) {
		w.lossy = false
	}
	if w.lossy || w.size >= maxWindow {
		return
	}
	// Slow start, which doubles the window in a round trip; then congestion avoidance.
	if w.size < w.slow {
		w.size = min(w.size+n, maxWindow)
		return
	}
	if w.acked += n; w.acked >= w.size {
		w.acked -= w.size
		w.size++
	}
}

// loss shrinks the window, once for the packets before top.
func (w *window) loss(top roce.PSN, timeout bool) {
	if w.size == 0 {
		w.size = initialWindow
	}
	if !w.lossy {
		w.slow = max(w.size/2, minWindow)
		w.size = w.slow
	}
	// Not even a NAK has come: the path may have lost everything, so begin with a few packets.
	if timeout {
		w.size = min(w.size, 2*minWindow)
	}
	w.acked = 0
	w.lossy, w.recovers = true, top
}
