//go:build linux

package machine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/lab/internal/job"
)

// TestLate has a program that answers no signal, in a guest that does not either.
func TestLate(t *testing.T) {
	host, guest := net.Pipe()
	defer host.Close()
	defer guest.Close()
	orders := make(chan job.Order, 4)
	go func() {
		for in := json.NewDecoder(guest); ; {
			var o job.Order
			if in.Decode(&o) != nil {
				return
			}
			orders <- o
		}
	}()
	var errs bytes.Buffer
	killed := false
	w := &watch{m: &machine{port: host, kill: func() { killed = true }}, task: &Task{Limit: time.Hour}, std: Stdio{Err: &errs}}
	w.report(job.Started)
	if w.phase != phaseRunning || w.overdue == nil {
		t.Fatalf("the program does not run, or has no limit: %+v", w)
	}
	for _, want := range []unix.Signal{unix.SIGQUIT, unix.SIGKILL} {
		w.late()
		if o := <-orders; o.Signal != int(want) || killed {
			t.Fatalf("signal %d, want %d; killed %v", o.Signal, want, killed)
		}
	}
	w.late()
	if !killed || !errors.Is(w.failed, ErrDown) || !strings.Contains(errs.String(), "the program's stacks") || !strings.Contains(errs.String(), "killed") {
		t.Errorf("killed %v, %v, %s", killed, w.failed, &errs)
	}
}

// TestReport takes what the guest reports of a program that ends, and of one that the lab fails to
// run.
func TestReport(t *testing.T) {
	killed := false
	w := &watch{m: &machine{kill: func() { killed = true }}, task: &Task{}}
	for _, line := range []string{job.Started, job.Ended, `{"Exit":3}` + "\n"} {
		w.report(line)
	}
	if w.phase != phaseOver || !w.done || w.result.Exit != 3 || killed {
		t.Errorf("%+v, killed %v", w, killed)
	}
	w = &watch{m: w.m, task: &Task{}}
	w.report(`{"Error":"no disk"}` + "\n")
	if w.done || !killed || !strings.Contains(w.failed.Error(), "no disk") {
		t.Errorf("%+v, killed %v", w, killed)
	}
	for _, lines := range [][]string{{job.Started, job.Started}, {job.Ended}, {job.Started, job.Ended, job.Ended}, {job.Started, job.Ended, job.Started}, {job.Started, job.Ready}, {`{"Exit":0}`}, {job.Started, `{"Exit":0}`}} {
		killed = false
		w := &watch{m: &machine{ready: true, kill: func() { killed = true }}, task: &Task{}}
		for _, line := range lines {
			w.report(line)
		}
		if !killed || w.failed == nil {
			t.Errorf("%q is not refused", lines)
		}
	}
	if w.report("?\n"); !strings.Contains(w.failed.Error(), "no disk") {
		t.Errorf("a later failure hides the first: %v", w.failed)
	}
}

// TestSlowBoot: a boot that takes too long is blamed on the host's load if that is high, and one of two machines has
// more time then.
func TestSlowBoot(t *testing.T) {
	defer func(old func() (float64, int)) { hostLoad = old }(hostLoad)
	for _, test := range []struct {
		load  float64
		pair  bool
		limit time.Duration
		want  string
	}{
		{1.5, false, bootLimit, "the kernel did not come up in 10m0s"},
		{1.5, true, pairBootLimit, "the kernel did not come up in 1m30s"},
		{30, false, bootLimit, "this machine is overloaded: its load is 30 on 2 processors; run less beside the lab: the kernel did not come up in 10m0s"},
		{30, true, bootLimit, "this machine is overloaded: its load is 30 on 2 processors; run less beside the lab: the kernel did not come up in 10m0s"},
	} {
		hostLoad = func() (float64, int) { return test.load, 2 }
		synctest.Test(t, func(t *testing.T) {
			m := &machine{state: &state{}, reports: make(chan string), gone: make(chan struct{})}
			m.kill = func() { close(m.reports) }
			if test.pair {
				m.opt.net = new(network)
			}
			begun := time.Now()
			_, err := m.run(t.Context(), Task{}, Stdio{Out: io.Discard, Err: io.Discard})
			if !errors.Is(err, errBoot) || errors.Is(err, errOverloaded) != (test.load > 4) || err.Error() != test.want || time.Since(begun) != test.limit {
				t.Errorf("%+v: %v after %v", test, err, time.Since(begun))
			}
		})
	}
}

// TestForgedEnd has a program that reports its end while it runs. What its machine then reports, or its
// silence, is no failure of the next program, which needs another machine.
func TestForgedEnd(t *testing.T) {
	for _, test := range []struct {
		reports []string
		reuse   bool
	}{
		{[]string{job.Ended}, true},
		{[]string{`{"Exit":0}`}, true},
		{[]string{`{"Error":"a job arrives while another program runs"}`}, true},
		{nil, true},
		{[]string{job.Started, `{"Exit":0}`}, false}, // the next has started
	} {
		synctest.Test(t, func(t *testing.T) {
			host, guest := net.Pipe()
			go io.Copy(io.Discard, guest)
			m := &machine{ready: true, port: host, state: &state{}, reports: make(chan string, len(test.reports)), gone: make(chan struct{})}
			m.kill = sync.OnceFunc(func() { close(m.reports); host.Close() })
			for _, line := range test.reports {
				m.reports <- line
			}
			begun := time.Now()
			_, err := m.run(t.Context(), Task{}, Stdio{Out: io.Discard, Err: io.Discard})
			if err == nil || errors.Is(err, errReuse) != test.reuse || time.Since(begun) > time.Minute {
				t.Errorf("%q: %v after %v", test.reports, err, time.Since(begun))
			}
		})
	}
}

// TestProbe takes the result of a machine that runs no program.
func TestProbe(t *testing.T) {
	w := &watch{m: &machine{kill: func() {}}, task: &Task{Job: job.Job{Setup: job.Setup{Probe: true}}}}
	if w.report(`{"Exit":0}`); !w.done || w.failed != nil {
		t.Errorf("%+v", w)
	}
}

// TestLongReport has a guest that reports without an end.
func TestLongReport(t *testing.T) {
	host, guest := net.Pipe()
	killed := make(chan struct{})
	m := &machine{reports: make(chan string, 1), gone: make(chan struct{}), state: &state{}, kill: func() { close(killed) }}
	m.copiers.Go(func() { m.receive(host, 1<<20); host.Close() })
	part := bytes.Repeat([]byte("x"), 1<<16)
	for err := error(nil); err == nil; {
		_, err = guest.Write(part)
	}
	<-killed
	m.copiers.Wait()
}

// TestAwait has a guest that reports more output than there is.
func TestAwait(t *testing.T) {
	m := &machine{gone: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.await(ctx, 1<<62, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting has ended with %v", err)
	}
}

// TestAwaitStalled waits for output that a guest has reported and not sent.
func TestAwaitStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{gone: make(chan struct{})}
		time.AfterFunc(reuseLimit/2, func() { m.stdout.Write([]byte("late")) })
		begun := time.Now()
		if err := m.await(t.Context(), 1<<62, 0); !errors.Is(err, errSilent) {
			t.Errorf("waiting has ended with %v", err)
		}
		if took := time.Since(begun); took < reuseLimit*3/2 || took > reuseLimit*2 {
			t.Errorf("waiting has ended after %v", took)
		}
	})
}

// FuzzReport has a guest that reports any lines: only a program that has run and ended, in a machine that
// has not failed, has a result.
func FuzzReport(f *testing.F) {
	for _, lines := range []string{
		job.Started + job.Ended + `{"Exit":3}` + "\n",
		job.Started + job.ClockMark + "\n" + job.ClockMark + " 50000000 100000000\n" + job.Ended + "{}\n",
		job.ClockMark + " NaN Inf\n",
		job.Started + job.Started + job.Ended + "{}\n",
		`{"Error":"no disk"}` + "\n" + job.Ready,
	} {
		f.Add([]byte(lines))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		killed := false
		w := &watch{m: &machine{ready: true, kill: func() { killed = true }}, task: &Task{}, clock: clockCheck{factor: 1}}
		for line := range strings.Lines(string(b)) {
			if w.report(line); w.done {
				break
			}
		}
		begun, ended := strings.Index(string(b), job.Started), strings.LastIndex(string(b), job.Ended)
		if w.done && (killed || begun < 0 || ended < begun || w.result.Error != "") {
			t.Errorf("%q has a result: %+v; killed %v", b, w.result, killed)
		}
	})
}

// TestLastWords checks that the report of a kernel that is down has its first bug, once.
func TestLastWords(t *testing.T) {
	const first = "WARNING: the first\n"
	for calm, want := range map[int]string{
		1:   "\n--- kernel console ---\nWARNING: the first\ncalm\nOops",
		999: "\nbefore, the kernel warned:\nWARNING: the first\n" + strings.Repeat("calm\n", 28) + "calm\n--- kernel console ---\n",
	} {
		if got := lastWords([]byte(first + strings.Repeat("calm\n", calm) + "Oops\n")); !strings.HasPrefix(got, want) || strings.Count(got, "first") != 1 {
			t.Errorf("with %d calm lines: %q", calm, got)
		}
	}
}
