package cm

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/bridge"
)

// KeepAliveID is the ID of the completions of [Options].KeepAlive.
const KeepAliveID = 1<<64 - 1

// keepAlive tests a connection at intervals: an idle one does not notice that its peer's machine is
// gone. The layers have tests of their own, as the send queue is theirs. A timer takes no goroutine
// while it waits.
type keepAlive struct {
	mu    sync.Mutex
	timer *time.Timer // nil while there are no tests
}

// checkDelay is when a test is looked at: RoCE's devices give up after some 4 s.
const checkDelay = 5 * time.Second

// startKeepAlive calls test every d, with post set, and soon afterwards without. The first error
// ends the connection. It replaces an earlier test; with d 0 it only stops it.
func (e *Endpoint) startKeepAlive(d time.Duration, test func(post bool) error) {
	k := &e.keepAlive
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.timer != nil {
		k.timer.Stop()
		k.timer = nil
	}
	if d <= 0 || e.life.ending.Load() {
		return
	}
	var timer *time.Timer
	check, post := min(d/2, checkDelay), true
	timer = time.AfterFunc(d, func() {
		if err := test(post); err != nil {
			e.end(err, true, true)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.timer == timer {
			next := check
			if !post {
				next = d - check
			}
			post = !post
			timer.Reset(next)
		}
	})
	k.timer = timer
}

func init() {
	bridge.KeepAlive = func(e any, d time.Duration, test func(post bool) error) { e.(*Endpoint).startKeepAlive(d, test) }
}

// test is the test of [Options].KeepAlive. The completion is the program's, so the state of the QP
// tells whether the test has failed. A full queue has requests in flight, which test the connection
// as well. While completions wait in SendCQ there is no test: a program that does not poll would
// let tests fill the CQ, which would end a working connection.
func (e *Endpoint) test(post bool) error {
	attr, err := e.QP.Query()
	switch {
	case err == nil && attr.State == verbs.StateErr:
		return fmt.Errorf("%w: the queue pair has failed", verbs.ErrDisconnected)
	case err == nil && post && !bridge.HasCompletions(e.SendCQ):
		_, err = e.QP.PostSend(verbs.SendWR{ID: KeepAliveID, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled})
	}
	if err != nil && !errors.Is(err, verbs.ErrQueueFull) {
		e.log.logStep("keep-alive failed", e.route.Remote, err)
	}
	return nil
}
