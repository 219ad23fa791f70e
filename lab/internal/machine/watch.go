//go:build linux

package machine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/lab/internal/image"
	"github.com/goverbs/verbs/lab/internal/job"
)

// run runs a program. If it fails, the machine cannot be used again.
func (m *machine) run(ctx context.Context, t Task, std Stdio) (job.Result, error) {
	m.stdout.To(std.Out)
	m.stderr.To(std.Err)
	defer m.stdout.To(io.Discard)
	defer m.stderr.To(io.Discard)
	out, errs := m.stdout.N.Load(), m.stderr.N.Load()
	t.Stdin = std.In != nil
	limit := bootLimit
	switch {
	case m.ready:
		limit = reuseLimit
	case m.opt.net != nil:
		limit = pairBootLimit
	}
	boot := time.NewTimer(limit)
	defer boot.Stop()
	w := &watch{m: m, task: &t, std: std, reused: m.ready, clock: clockCheck{factor: m.opt.Factor}}
	if w.reused {
		w.give()
	}
	for done := ctx.Done(); !w.done; {
		select {
		case <-done:
			done = nil
			w.fail(fmt.Errorf("stopped: %w", context.Cause(ctx)))
		case <-boot.C:
			switch {
			case w.phase != phaseWaiting:
			case limit == pairBootLimit && overloaded(hostLoad()):
				fmt.Fprintf(os.Stderr, "lab: %v; waiting longer\n", tooLate(errBoot, limit))
				limit = bootLimit
				boot.Reset(bootLimit - pairBootLimit)
			case w.reused:
				w.fail(tooLate(errSilent, limit))
			default:
				w.fail(tooLate(errBoot, limit))
			}
		case <-w.signals:
			w.phase = max(w.phase, phaseAsked)
			w.signal(unix.SIGQUIT)
		case <-w.overdue:
			w.late()
		case line, ok := <-m.reports:
			if !ok {
				m.ready = false
				err := m.verdict(w.failed, w.reused || w.phase != phaseWaiting)
				// The program before this one is the cause: it forged its end, or broke the machine.
				if w.reused && w.phase == phaseWaiting && ctx.Err() == nil {
					err = fmt.Errorf("%w: %w", errReuse, err)
				}
				return w.result, err
			}
			w.report(line)
		}
	}
	err := m.await(ctx, out+w.result.Out, errs+w.result.Err)
	return w.result, errors.Join(err, job.OutputError(m.stdout.To(io.Discard)), job.OutputError(m.stderr.To(io.Discard)))
}

// phase is the state of a program. The guest reports its start and its end; between them the host may
// ask it to end.
type phase uint8

const (
	phaseWaiting phase = iota
	phaseRunning
	phaseAsked  // by SIGQUIT, for stacks
	phaseKilled // by SIGKILL
	phaseOver   // it has ended, and the guest kills what it left and collects its files
)

// watch follows a program from the job to the result.
type watch struct {
	m       *machine
	task    *Task
	std     Stdio
	clock   clockCheck
	phase   phase
	reused  bool             // the machine has run another program
	done    bool             // there is a result
	failed  error            // why the machine is killed
	signals <-chan os.Signal // nil until the program runs
	overdue <-chan time.Time // fires when the program, or its answer to a signal, is late
	result  job.Result
}

func (w *watch) fail(err error) {
	if w.failed == nil {
		w.failed = err
	}
	w.m.kill()
}

func (w *watch) give() {
	if err := w.m.give(w.task); err != nil {
		w.fail(err)
	}
}

func (w *watch) signal(sig unix.Signal) {
	json.NewEncoder(w.m.port).Encode(job.Order{Signal: int(sig)})
	w.overdue = time.After(w.task.patience())
}

// late asks a program for its stacks, and then kills it, and then the machine.
func (w *watch) late() {
	switch {
	case w.phase == phaseRunning:
		w.phase = phaseAsked
		fmt.Fprintf(w.std.Err, "lab: timeout of %v exceeded; the program's stacks:\n", w.task.Limit)
		w.signal(unix.SIGQUIT)
	case w.phase == phaseAsked:
		w.phase = phaseKilled
		fmt.Fprintln(w.std.Err, "lab: still running after SIGQUIT: killed")
		w.signal(unix.SIGKILL)
	default:
		w.fail(fmt.Errorf("%w: it does not answer", ErrDown))
	}
}

// report handles a report of the guest. A program is root there and can write to the port itself, so Ready,
// Started and Ended count only in the phase where the lab's own process 1 sends them: a second Ready must not
// save a machine that has run a program. Out of order they reach the default, where they are no JSON, and
// the machine is killed. A result follows Ended, except that of a probe, which runs no program, and one with an
// error, as process 1 may fail in any phase. What a machine reports after it has failed, before it is dead,
// does not count.
func (w *watch) report(line string) {
	switch m := w.m; {
	case w.failed != nil:
	case line == job.Ready && !m.ready:
		m.ready = true
		if err := m.state.save(); err != nil {
			fmt.Fprintf(os.Stderr, "lab: the machine could not be saved: %v\n", err)
		}
		w.give() // the guest mounts folders while adapters are plugged in
		if err := m.plug(); err != nil {
			select {
			case <-m.gone: // the end of reports shows why
			case <-time.After(time.Second):
				w.fail(err)
			}
		}
	case line == job.Started && w.phase == phaseWaiting:
		w.phase, w.signals = phaseRunning, w.std.Signals
		if w.task.Limit > 0 {
			w.overdue = time.After(w.task.Limit + w.task.patience())
		}
		if w.std.In != nil {
			go func() { // not waited for: stdin may block forever
				job.FeedStdin(<-m.stdin, w.std.In)
			}()
		}
	case line == job.Ended && w.phase != phaseWaiting && w.phase != phaseOver:
		w.phase, w.signals = phaseOver, nil
		if w.task.Limit > 0 {
			w.overdue = time.After(time.Minute) // in which the guest is cleaned
		}
	case strings.HasPrefix(line, job.ClockMark):
		if err := w.clock.mark(line); err != nil {
			w.fail(err)
		}
	default:
		if err := json.Unmarshal([]byte(line), &w.result); err != nil {
			w.fail(fmt.Errorf("the guest reports %.100q: %w", line, err))
		} else if w.result.Error != "" {
			w.fail(fmt.Errorf("in the guest: %s", w.result.Error))
		} else if w.phase != phaseOver && !w.task.Probe {
			w.fail(errors.New("the guest reports a result of a program that has not ended"))
		} else {
			w.done = true
		}
	}
}

// give gives the guest a job.
func (m *machine) give(t *Task) error {
	if m.state.restored {
		t.Restored = newFresh()
	}
	var err error
	if t.Args, err = shorten(t.Args, t.Begun); err != nil {
		return err
	}
	json.NewEncoder(m.port).Encode(job.Order{Job: &t.Job}) // it fails if the machine is gone, which the end of reports shows
	return nil
}

// await waits until all output of a program has arrived, by the sizes that the guest has reported. Output that
// was never written does not arrive.
func (m *machine) await(ctx context.Context, stdout, stderr int64) error {
	arrived, since := int64(-1), time.Now()
	for m.stdout.N.Load() < stdout || m.stderr.N.Load() < stderr {
		if n := m.stdout.N.Load() + m.stderr.N.Load(); n != arrived || m.stdout.Busy() || m.stderr.Busy() {
			arrived, since = n, time.Now()
		} else if time.Since(since) > reuseLimit {
			return fmt.Errorf("the guest reports output that has not come: %w", tooLate(errSilent, reuseLimit))
		}
		select {
		case <-time.After(time.Millisecond):
		case <-m.gone:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("stopped: %w", context.Cause(ctx))
		}
	}
	return nil
}

// verdict returns why a machine is gone, before or after it has started a program.
func (m *machine) verdict(failed error, started bool) error {
	console := m.console()
	switch {
	case failed != nil:
		return fmt.Errorf("%w%s", failed, image.Tail(console))
	case !started && m.state.restored:
		os.Remove(m.state.file)
		return fmt.Errorf("%w: %s is of no use: %s%s", errBoot, m.state.file, m.log.Bytes(), image.Tail(console))
	case !started && m.err != nil:
		return fmt.Errorf("machine: %w\n%s%s", m.err, m.log.Bytes(), image.Tail(console))
	case !started:
		return fmt.Errorf("%w%s", errBoot, image.Tail(console))
	case bytes.Contains(console, []byte("Oops: int3: ")):
		return fmt.Errorf("%w: %w%s", ErrDown, ErrPatched, image.Tail(console))
	}
	return fmt.Errorf("%w%s", ErrDown, lastWords(console))
}

// lastWords returns the first bug that a kernel reported, which may be the cause of the last, and the end
// of its console.
func lastWords(console []byte) string {
	end := image.Tail(console)
	first, _ := job.Warnings(strings.Lines(string(console)))
	if len(first) == 0 || strings.Contains(end, first[0]) {
		return end
	}
	return "\nbefore, the kernel warned:\n" + strings.Join(first[:min(30, len(first))], "\n") + end
}
