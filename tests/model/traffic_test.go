package model

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
)

var errUnsupported = errors.ErrUnsupported

// link is a connection from a to b. Each request completes once, in order; when
// an end is made to fail, its last requests complete with an error.
type link struct {
	w    *state
	a, b *rdmatest.Endpoint

	sendsPosted, recvsPosted uint64 // requests made so far; their IDs count up from 0
	sendsDone, recvsDone     uint64 // completions so far
	failedA, bad             bool
	failedB, badB            bool // the first failed completion has arrived
}

const (
	depth = 32 // of the queues
	slots = 64 // for receives in the queue and completed ones
	slot  = 64 // bytes
)

func newLink(w *state) *link {
	a, b := labtest.NewPair(w.t, w.device, rdmatest.PairOptions{All: true, Memory: slots * slot, Cap: verbs.QPCap{
		MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 2, MaxRecvSGE: 1, MaxInline: 32,
	}})
	return &link{w: w, a: a, b: b}
}

// trafficCalls are the calls that need a link.
var trafficCalls = []func(*state){
	func(w *state) { w.links[w.choose(len(w.links))].receive(1 + w.choose(8)) },
	func(w *state) { w.links[w.choose(len(w.links))].receive(1 + w.choose(8)) },
	func(w *state) { w.links[w.choose(len(w.links))].send(1 + w.choose(4)) },
	func(w *state) { w.links[w.choose(len(w.links))].send(1 + w.choose(4)) },
	func(w *state) { w.links[w.choose(len(w.links))].misuse(w.choose(5)) },
	func(w *state) { w.links[w.choose(len(w.links))].settle() },
	func(w *state) {
		if w.choose(32) == 0 {
			w.links[w.choose(len(w.links))].breakA()
		}
	},
	func(w *state) {
		if w.choose(32) == 0 {
			w.links[w.choose(len(w.links))].breakB()
		}
	},
}

// receive posts n receives. The queue must accept at least as many as the model has room
// for.
func (l *link) receive(n int) {
	if l.failedB && l.w.device == labtest.SIW {
		return // siw does not report that the peer has gone; the model would have to guess
	}
	if l.poll(); l.recvsPosted-l.recvsDone > slots-8 {
		return
	}
	wrs := make([]verbs.RecvWR, n)
	for i := range wrs {
		id := l.recvsPosted + uint64(i)
		wrs[i] = verbs.RecvWR{ID: id, SGL: []verbs.SGE{l.b.MR.SGE(int(id%slots)*slot, slot)}}
	}
	room := depth - int(l.recvsPosted-l.recvsDone)
	posted, err := l.b.QP.PostRecv(wrs...)
	l.posted("receives", posted, n, room, err)
	l.recvsPosted += uint64(posted)
}

func (l *link) posted(what string, posted, n, room int, err error) {
	var want []error
	if posted < n {
		want = []error{verbs.ErrQueueFull}
	}
	if posted < min(n, room) {
		l.w.fail("posted %d of %d %s, with room for %d: %v", posted, n, what, room, err)
	}
	l.w.checkCall(err, want, "post %d %s", n, what)
}

// send posts n messages that contain their number. On iWARP a message without a
// receive would end the connection.
func (l *link) send(n int) {
	if l.w.iwarp {
		n = min(n, int(l.recvsPosted)-int(l.sendsPosted))
	}
	if n <= 0 || l.failedA != l.failedB {
		return
	}
	wrs := make([]verbs.SendWR, n)
	for i := range wrs {
		id := l.sendsPosted + uint64(i)
		wrs[i] = verbs.SendWR{ID: id, Opcode: verbs.OpSend, Inline: binary.BigEndian.AppendUint64(nil, id)}
	}
	room := depth - int(l.sendsPosted-l.sendsDone)
	posted, err := l.a.QP.PostSend(wrs...)
	l.posted("sends", posted, n, room, err)
	l.sendsPosted += uint64(posted)
}

// misuse posts a request that every queue rejects.
func (l *link) misuse(kind int) {
	sge := l.a.MR.SGE(0, 8)
	wr, want := verbs.SendWR{ID: 99, Opcode: verbs.OpSend}, error(nil)
	switch kind {
	case 0:
		wr.SGL, want = []verbs.SGE{sge, sge, sge, sge, sge, sge, sge, sge, sge}, verbs.ErrTooManySGEs
	case 1:
		wr.Opcode, want = 200, verbs.ErrOpcode
	case 2:
		wr.Inline, want = make([]byte, 4096), verbs.ErrInlineTooLong
	case 3:
		wr.Inline, wr.SGL, want = make([]byte, 4), []verbs.SGE{sge}, verbs.ErrInlineSGL
	case 4:
		wr.Opcode, wr.Inline, want = verbs.OpRDMARead, make([]byte, 4), verbs.ErrInlineOp
	}
	if l.failedA || l.failedB || l.sendsPosted-l.sendsDone == depth {
		return // a full queue, or one that flushes, does not check requests
	}
	n, err := l.a.QP.PostSend(wr)
	var p *verbs.PostError
	if n != 0 || !errors.As(err, &p) || p.Index != 0 || p.ID != 99 {
		l.w.fail("misuse %d posted %d: %v", kind, n, err)
	}
	l.w.checkCall(err, []error{want}, "misuse %d", kind)
}

// breakA and breakB make an end fail.
func (l *link) breakA() { l.fail(l.a, &l.failedA) }
func (l *link) breakB() { l.fail(l.b, &l.failedB) }

func (l *link) fail(s *rdmatest.Endpoint, failed *bool) {
	l.settle()
	l.w.checkCall(s.QP.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState), nil, "break QP %d", s.QP.Num())
	*failed = true
}

// settle waits for the completions that must arrive: those of sends with a matching
// receive, and those of all requests of an end that failed.
func (l *link) settle() {
	sends, recvs := min(l.sendsPosted, l.recvsPosted), min(l.sendsPosted, l.recvsPosted)
	if l.failedA {
		sends = l.sendsPosted
	}
	if l.failedB {
		recvs = l.recvsPosted
	}
	if l.failedA != l.failedB {
		// Messages in flight when one end failed may or may not have arrived.
		sends, recvs = min(sends, l.sendsDone), min(recvs, l.recvsDone)
		if l.failedA {
			sends = l.sendsPosted
		} else {
			recvs = l.recvsPosted
		}
	}
	deadline := time.Now().Add(time.Minute)
	for {
		l.poll()
		if l.sendsDone >= sends && l.recvsDone >= recvs {
			return
		}
		if time.Now().After(deadline) {
			l.w.fail("%d of %d sends and %d of %d receives have completed", l.sendsDone, sends, l.recvsDone, recvs)
		}
		time.Sleep(100 * time.Microsecond)
	}
}

func (l *link) poll() {
	var wcs [8]verbs.WC
	for _, wc := range wcs[:l.a.SendCQ.Poll(wcs[:])] {
		l.completed(wc, l.sendsDone, l.sendsPosted, l.failedA || l.failedB, &l.bad)
		l.sendsDone++
	}
	for _, wc := range wcs[:l.b.RecvCQ.Poll(wcs[:])] {
		id := l.recvsDone
		l.completed(wc, id, l.recvsPosted, l.failedA || l.failedB, &l.badB)
		if got := l.b.MR.Bytes()[int(id%slots)*slot:]; wc.Err() == nil && (wc.ByteLen != 8 || binary.BigEndian.Uint64(got) != id) {
			l.w.fail("receive %d has %d bytes, number %d", id, wc.ByteLen, binary.BigEndian.Uint64(got))
		}
		l.recvsDone++
	}
}

// completed checks a completion: it is the next one; it may have failed only if the end
// has failed, and then all later ones must fail as well.
func (l *link) completed(wc verbs.WC, want, made uint64, failed bool, bad *bool) {
	switch {
	case wc.ID != want || want >= made:
		l.w.fail("completion %+v, want ID %d of %d", wc, want, made)
	case wc.Err() != nil && !failed:
		l.w.fail("request %d: %v", wc.ID, wc.Err())
	case wc.Err() == nil && *bad:
		l.w.fail("request %d completed after others had failed", wc.ID)
	}
	*bad = *bad || wc.Err() != nil
}

// finish breaks both ends and waits for the completion of all requests.
func (l *link) finish() {
	l.breakA()
	l.breakB()
	l.settle()
	if l.sendsDone != l.sendsPosted || l.recvsDone != l.recvsPosted {
		l.w.fail("%d of %d sends, %d of %d receives", l.sendsDone, l.sendsPosted, l.recvsDone, l.recvsPosted)
	}
}
