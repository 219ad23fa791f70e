package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/workload"
)

// pause returns how long a process is stopped.
func pause() time.Duration {
	if allFaults {
		return 5 * time.Second
	}
	return 500 * time.Millisecond
}

// TestFreezeHere stops this process, and not its peer.
func TestFreezeHere(t *testing.T) {
	runFault(t, fault{title: "the process that dialed is stopped for 5 s", quick: "rsock", long: true, run: func(e *env) {
		c, l := e.startLoad()
		start := time.Now()
		script := fmt.Sprintf("kill -STOP %[1]d; sleep %[2]v; kill -CONT %[1]d", os.Getpid(), pause().Seconds())
		if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
			e.Errorf("%v: %s", err, out)
		}
		if took := time.Since(start); took < pause() {
			e.Errorf("stopped for %v only", took)
		}
		e.expectContinues(c, l, 20)
	}})
}

// TestFreeze stops the peer's process for some seconds.
func TestFreeze(t *testing.T) {
	runFault(t, fault{title: "the peer's process is stopped for 5 s", quick: "rmsg", long: true, run: func(e *env) {
		c, l := e.startLoad()
		c.freeze()
		time.Sleep(pause())
		c.signal(unix.SIGCONT)
		labtest.Check(e, l.waitRounds(1))
		e.expectContinues(c, l, 20)
	}})
}

// deadlineSlack is how long after its deadline a call may return on a busy machine.
const deadlineSlack = 3 * time.Second

// roundUntilDeadline checks that a round that cannot succeed returns at its deadline.
func (e *env) roundUntilDeadline(s workload.Session, limit time.Duration) (saw string, took time.Duration) {
	e.Helper()
	ctx := labtest.Within(e, limit)
	start := time.Now()
	err := s.Round(ctx, roundSize)
	took = time.Since(start)
	if took < limit*9/10 || took > limit+deadlineSlack {
		e.Errorf("%v took %v", limit, took)
	}
	return e.expect(wantErrors{
		"cm":    {context.DeadlineExceeded},
		"rconn": {context.DeadlineExceeded},
		"rmsg":  {context.DeadlineExceeded},
		"rsock": {os.ErrDeadlineExceeded},
	}, err), took
}

// TestFreezeDeadline does a round with a deadline while the peer is stopped, and closes the
// connection before the peer continues.
func TestFreezeDeadline(t *testing.T) {
	runFault(t, fault{title: "the peer's process is stopped: a round with a deadline of 1 s, and Close", run: func(e *env) {
		c := e.serve()
		s := e.dial(c)
		c.freeze()
		saw, took := e.roundUntilDeadline(s, time.Second)
		start := time.Now()
		delete(e.open, s)
		// The written data has not been read, which only rsock reports.
		if err := s.Close(); err != nil && !(e.layer.Name == "rsock" && errors.Is(err, os.ErrDeadlineExceeded)) {
			e.Error(err)
		}
		closed := time.Since(start)
		if closed > 10*time.Second+deadlineSlack {
			e.Errorf("Close took %v", closed)
		}
		c.signal(unix.SIGCONT)
		e.finish(c, saw+"; Close "+closed.String(), took)
	}})
}

// TestClock sets the clock forward and back by an hour under load, and during a wait with a
// deadline.
func TestClock(t *testing.T) {
	step := func(e *env, d time.Duration) {
		e.Helper()
		tv := unix.NsecToTimeval(time.Now().Add(d).UnixNano())
		labtest.Check(e, unix.Settimeofday(&tv))
	}
	runFault(t, fault{title: "the clock is set an hour on, and back", run: func(e *env) {
		c, l := e.startLoad()
		for _, d := range []time.Duration{time.Hour, -time.Hour, -time.Hour, time.Hour} {
			step(e, d)
			labtest.Check(e, l.waitRounds(5))
		}
		other := e.dial(c)
		c.freeze()
		time.AfterFunc(300*time.Millisecond, func() { step(e, time.Hour) })
		saw, took := e.roundUntilDeadline(other, time.Second)
		step(e, -time.Hour)
		c.signal(unix.SIGCONT)
		e.Logf("%s after %v", saw, took)
		e.close(other)
		e.expectContinues(c, l, 5)
	}})
}
