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
	if all {
		return 5 * time.Second
	}
	return 500 * time.Millisecond
}

// TestFreezeHere stops this process, and not its peer.
func TestFreezeHere(t *testing.T) {
	each(t, fault{title: "the process that dialed is stopped for 5 s", quick: "rsock", run: func(e *env) {
		c, l := e.under()
		start := time.Now()
		script := fmt.Sprintf("kill -STOP %[1]d; sleep %[2]v; kill -CONT %[1]d", os.Getpid(), pause().Seconds())
		if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
			e.Errorf("%v: %s", err, out)
		}
		if took := time.Since(start); took < pause() {
			e.Errorf("stopped for %v only", took)
		}
		e.goesOn(c, l, 20)
	}})
}

// TestFreeze stops the peer's process for some seconds.
func TestFreeze(t *testing.T) {
	each(t, fault{title: "the peer's process is stopped for 5 s", quick: "rmsg", run: func(e *env) {
		c, l := e.under()
		c.freeze()
		time.Sleep(pause())
		c.signal(unix.SIGCONT)
		labtest.Check(e, l.more(1))
		e.goesOn(c, l, 20)
	}})
}

// late is how long after its deadline a call may return on a busy machine.
const late = 3 * time.Second

// inTime checks that a round that cannot succeed returns at its deadline.
func (e *env) inTime(s workload.Session, limit time.Duration) (saw string, took time.Duration) {
	e.Helper()
	ctx := labtest.Within(e, limit)
	start := time.Now()
	err := s.Round(ctx, chunk)
	took = time.Since(start)
	if took < limit*9/10 || took > limit+late {
		e.Errorf("%v took %v", limit, took)
	}
	return e.expect(wants{
		"cm":    {context.DeadlineExceeded},
		"rconn": {context.DeadlineExceeded},
		"rmsg":  {context.DeadlineExceeded},
		"rsock": {os.ErrDeadlineExceeded},
	}, err), took
}

// TestFreezeDeadline does a round with a deadline while the peer is stopped, and closes the
// connection before the peer continues.
func TestFreezeDeadline(t *testing.T) {
	each(t, fault{title: "the peer's process is stopped: a round with a deadline of 1 s, and Close", run: func(e *env) {
		c := e.serve()
		s := e.dial(c)
		c.freeze()
		saw, took := e.inTime(s, time.Second)
		start := time.Now()
		delete(e.open, s)
		// The written data has not been read, which only rsock reports.
		if err := s.Close(); err != nil && !(e.layer.Name == "rsock" && errors.Is(err, os.ErrDeadlineExceeded)) {
			e.Error(err)
		}
		closed := time.Since(start)
		if closed > 10*time.Second+late {
			e.Errorf("Close took %v", closed)
		}
		c.signal(unix.SIGCONT)
		e.ends(c, saw+"; Close "+brief(closed), took)
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
	each(t, fault{title: "the clock is set an hour on, and back", run: func(e *env) {
		c, l := e.under()
		for _, d := range []time.Duration{time.Hour, -time.Hour, -time.Hour, time.Hour} {
			step(e, d)
			labtest.Check(e, l.more(5))
		}
		other := e.dial(c)
		c.freeze()
		time.AfterFunc(300*time.Millisecond, func() { step(e, time.Hour) })
		saw, took := e.inTime(other, time.Second)
		step(e, -time.Hour)
		c.signal(unix.SIGCONT)
		e.Logf("%s after %v", saw, took)
		e.close(other)
		e.goesOn(c, l, 5)
	}})
}
