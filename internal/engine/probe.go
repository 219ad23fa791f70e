package engine

import (
	"time"

	"github.com/goverbs/verbs/internal/roce"
)

// lossProbe finds losses that no NAK reports, such as of the last packet: after some round trips
// without an acknowledgement the requester repeats one packet. If only this one is acknowledged,
// the packets behind it are lost. The QP's timeout, after which the requester repeats otherwise, is
// usually much longer; only it counts as a retry.
type lossProbe struct {
	at     time.Duration // 0: not set
	shift  int           // the interval has been doubled so often since the last acknowledgement
	trip   time.Duration // smoothed round trip; 0: not known
	timing bool          // the time until psn is acknowledged is being measured
	psn    roce.PSN
	from   time.Duration
}

const (
	minProbe = 2 * time.Millisecond
	maxShift = 10
)

// interval returns how long to wait for an acknowledgement, or 0 if that is not known: some round
// trips, doubled for each probe without an answer.
func (p *lossProbe) interval() time.Duration {
	if p.trip == 0 {
		return 0
	}
	return max(4*p.trip, minProbe) << min(p.shift, maxShift)
}

// sent measures the time until the packets before psn are acknowledged.
func (p *lossProbe) sent(psn roce.PSN, now time.Duration) {
	if !p.timing {
		p.timing, p.psn, p.from = true, psn, now
	}
}

// acked ends the measurement.
func (p *lossProbe) acked(psn roce.PSN, now time.Duration) {
	p.shift = 0
	if !p.timing || psn.Before(p.psn) {
		return
	}
	p.timing = false
	if d := now - p.from; p.trip == 0 {
		p.trip = max(d, 1)
	} else {
		// The moving average of TCP's SRTT (RFC 6298), with the same weight.
		p.trip += (d - p.trip) / 8
	}
}
