package soak

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/workload"
)

// A victim is a third process, which dials a layer's server and does rounds until its fate:
//
//	clients ── victim: rounds, and then it is killed, stopped, or lacks something
//	              ║
//	           server of the layer, for victims only
//
// What its connections end with there is no failure. Wrong data is, and what is left of them.
const victimTask = "SOAK_VICTIM"

// A fate is what happens to a victim. It is killed in the end, or else ends by itself, without closing anything.
type fate struct {
	name  string
	conns int  // at the same time
	gone  bool // the server may have given them up
	// limit lowers a limit of the process before it dials.
	limit func(r *rand.Rand) error
	want  []error // what a dial may fail with
	// harm is done to the process after some rounds; nil is nothing.
	harm func(ctx context.Context, p *os.Process, r *rand.Rand) error
}

var fates = []fate{
	{name: "is killed", conns: 1, harm: kill},
	{name: "is killed with 16 connections", conns: 16, harm: kill},
	{name: "is stopped and killed", conns: 2, gone: true, harm: stop},
	{name: "dials 16 times at once and exits", conns: 16, want: []error{unix.ECONNREFUSED, unix.ETIMEDOUT}}, // the backlog, and 10 s that siw gives an answer
	{name: "lacks files", conns: 2, limit: lackFiles, want: []error{unix.EMFILE}},
	{name: "lacks locked memory", conns: 2, limit: lackMemory, want: []error{unix.ENOMEM}},
}

func kill(_ context.Context, p *os.Process, _ *rand.Rand) error { return p.Kill() }

// stop stops a process for up to 20 s, and kills it when it runs again.
func stop(ctx context.Context, p *os.Process, r *rand.Rand) error {
	if err := p.Signal(unix.SIGSTOP); err != nil {
		return err
	}
	pause(ctx, time.Duration(r.Int64N(int64(20*time.Second))))
	if err := p.Signal(unix.SIGCONT); err != nil {
		return err
	}
	pause(ctx, time.Duration(r.Int64N(int64(2*time.Second))))
	return p.Kill()
}

// lackFiles leaves a few files, when the runtime has the one without which it does not run.
func lackFiles(r *rand.Rand) error {
	time.Sleep(time.Millisecond)
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	n := uint64(len(open) - 1 + r.IntN(12))
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n})
}

// lackMemory limits locked memory, as another user: root's has no limit.
func lackMemory(r *rand.Rand) error {
	nodes, err := filepath.Glob("/dev/infiniband/*")
	for _, n := range nodes {
		err = errors.Join(err, os.Chmod(n, 0o666))
	}
	n := uint64(1 << (12 + r.IntN(10)))
	return errors.Join(err, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: n, Max: n}), unix.Setuid(65534))
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// victimsLayer returns a layer of victims of another.
func victimsLayer(l *workload.Layer) layer {
	of := *l
	of.Name = "victims of " + l.Name
	of.Listen = func(ctx context.Context, addr string, report func(error)) (*workload.Server, error) {
		return l.Listen(ctx, addr, func(err error) {
			if errors.Is(err, workload.ErrData) {
				report(err)
			}
			fmt.Fprintln(os.Stderr, of.Name+", server:", err)
		})
	}
	return layer{&of, 1, func(ctx context.Context, s *side, addr string, r *rand.Rand, n *count) error {
		return runVictim(ctx, l, s.device, addr, r, n)
	}}
}

// runVictim starts a victim, and returns when it has met its fate.
func runVictim(ctx context.Context, l *workload.Layer, device, addr string, r *rand.Rand, n *count) error {
	i := r.IntN(len(fates))
	rounds := 1 + r.IntN(20)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestVictim$", "-test.timeout=0", fmt.Sprint("-pace=", *pace))
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %d %s %s %s", victimTask, i, rounds, r.Uint64(), device, addr, l.Name))
	var text strings.Builder
	cmd.Stderr = &text
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	harm := fates[i].harm
	for lines := bufio.NewScanner(out); lines.Scan(); {
		size, err := strconv.Atoi(lines.Text())
		if err != nil {
			continue // of package testing
		}
		n.add(2 * size)
		if rounds--; rounds == 0 && harm != nil {
			if err := harm(ctx, cmd.Process, r); err != nil && !errors.Is(err, os.ErrProcessDone) {
				return fmt.Errorf("a victim that %s: %w", fates[i].name, err)
			}
		}
	}
	if err := cmd.Wait(); ctx.Err() == nil && err != nil && cmd.ProcessState.ExitCode() != -1 {
		return fmt.Errorf("a victim that %s: %w: %s", fates[i].name, err, &text)
	}
	return ctx.Err()
}

// TestVictim is a victim.
func TestVictim(t *testing.T) {
	task := os.Getenv(victimTask)
	if task == "" {
		t.Skip("TestSoak runs it")
	}
	*pace /= 10 // its connections are many, and must not outweigh those of all others
	f := strings.SplitN(task, " ", 6)
	i, _ := strconv.Atoi(f[0])
	rounds, _ := strconv.Atoi(f[1])
	seed, _ := strconv.ParseUint(f[2], 10, 64)
	if err := beVictim(fates[i], rounds, rand.New(rand.NewPCG(seed, 0)), f[3], f[4], f[5]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// beVictim does rounds on its connections until it has done them all or, if it is to be harmed, for ever.
// On siw it begins when all are made: a dial that ends with its process can corrupt the kernel
// (docs/upstream/siw-listener.md).
func beVictim(f fate, rounds int, r *rand.Rand, device, addr, name string) error {
	l, err := workload.ByName(name)
	if err != nil {
		return err
	}
	if f.limit != nil {
		if err := f.limit(r); err != nil {
			return err
		}
	}
	expected := f.want
	if f.gone {
		expected = l.PeerGoneErrors
	}
	ctx, cancel := withLifetime(context.Background())
	defer cancel()
	var working, dialing sync.WaitGroup
	dialing.Add(f.conns)
	errs := make(chan error, f.conns)
	resting := new(side)
	for range f.conns {
		seed := r.Uint64()
		working.Go(func() {
			r := rand.New(rand.NewPCG(seed, 0))
			s, err := l.Dial(ctx, addr)
			dialing.Done()
			if device == labtest.SIW {
				dialing.Wait()
			}
			for i := 0; err == nil && (f.harm != nil || i < rounds); i++ {
				size := r.IntN(64<<10) >> r.IntN(16)
				if err = s.Round(ctx, size); err == nil {
					fmt.Println(size)
					resting.rest(r)
				}
			}
			errs <- err
		})
	}
	working.Wait()
	close(errs)
	for err := range errs {
		if err != nil && !slices.ContainsFunc(expected, func(e error) bool { return errors.Is(err, e) }) {
			return err
		}
	}
	return nil
}
