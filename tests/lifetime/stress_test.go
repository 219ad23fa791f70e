package lifetime

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/tests/workload"
	"github.com/goverbs/verbs/uverbs"
)

// TestMain does nothing in the processes that TestUnderPressure starts.
func TestMain(m *testing.M) {
	if os.Getenv("LIFETIME_CHILD") != "" {
		os.Exit(7)
	}
	os.Exit(m.Run())
}

// work holds functions that transfer data on a device: each call transfers some and checks it.
var work = map[string]func(t *testing.T, device string) (do func(seq int) error, end func()){
	"verbs, own memory":         verbsWork(false),
	"verbs, memory of the heap": verbsWork(true),
	"cm":                        layerWork(workload.CM),
	"rconn":                     layerWork(workload.RConn),
	"rmsg":                      layerWork(workload.RMsg),
	"rsock":                     layerWork(workload.RSock),
}

// TestUnderPressure transfers data while the garbage collector runs continuously, memory is
// returned to the system, and processes are started: fork must not separate registered memory
// from the pages that the device uses.
func TestUnderPressure(t *testing.T) {
	labtest.EachClean(t, func(t *testing.T, device string) {
		defer debug.SetGCPercent(debug.SetGCPercent(1))
		stop := make(chan struct{})
		var pressure sync.WaitGroup
		again := func(what func()) {
			pressure.Go(func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(time.Millisecond):
						what()
					}
				}
			})
		}
		again(runtime.GC)
		again(debug.FreeOSMemory)
		children := 0
		again(func() {
			child := exec.Command(os.Args[0])
			child.Env = append(os.Environ(), "LIFETIME_CHILD=1")
			err := child.Run()
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 7 {
				t.Errorf("a child: %v", err)
			}
			children++
		})
		var all sync.WaitGroup
		for name, start := range work {
			do, end := start(t, device)
			all.Go(func() {
				defer end()
				for seq := range 15 * *times {
					if err := do(seq); err != nil {
						t.Errorf("%s: round %d: %v", name, seq, err)
						return
					}
				}
			})
		}
		all.Wait()
		close(stop)
		pressure.Wait()
		if children == 0 {
			t.Error("no processes were started")
		}
		t.Logf("%d processes were started", children)
	})
}

// verbsWork writes to another region and reads back from there.
func verbsWork(heap bool) func(t *testing.T, device string) (func(int) error, func()) {
	return func(t *testing.T, device string) (func(int) error, func()) {
		const size = 20000
		a, b := labtest.NewPair(t, device, rdmatest.PairOptions{})
		from, to := a.MR, b.MR
		src, dst := from.Bytes(), to.Bytes()
		end := func() {}
		if heap {
			src, dst = make([]byte, size), make([]byte, size)
			from = labtest.Must(a.PD.RegisterMR(src, verbs.AccessLocalWrite, uverbs.MROptions{}))(t)
			to = labtest.Must(b.PD.RegisterMR(dst, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead, uverbs.MROptions{}))(t)
			end = func() { check(t, from.Close(), to.Close()) }
		}
		post := func(op verbs.Opcode) error {
			_, err := a.QP.PostSend(verbs.SendWR{
				Opcode: op, Flags: verbs.SendSignaled, SGL: []verbs.SGE{from.SGE(0, size)}, RemoteAddr: to.Addr(), RKey: to.RKey(),
			})
			var wc [1]verbs.WC
			for deadline := time.Now().Add(waitTimeout); err == nil && a.SendCQ.Poll(wc[:]) == 0; runtime.Gosched() {
				if time.Now().After(deadline) {
					err = context.DeadlineExceeded
				}
			}
			return errors.Join(err, wc[0].Err())
		}
		return func(seq int) error {
			want := labtest.RandomBytes(seq, size)
			copy(src, want)
			err := post(verbs.OpRDMAWrite)
			clear(src)
			if err == nil {
				err = post(verbs.OpRDMARead) // which also ensures that the WRITE has arrived
			}
			if err == nil && (!bytes.Equal(src[:size], want) || !bytes.Equal(dst[:size], want)) {
				err = errors.New("other bytes came")
			}
			return err
		}, end
	}
}

// layerWork does rounds of a layer with a server in this process.
func layerWork(l *workload.Layer) func(t *testing.T, device string) (func(int) error, func()) {
	return func(t *testing.T, device string) (func(int) error, func()) {
		ctx := within(t)
		server := labtest.Must(l.Listen(ctx, labtest.AddrOf(device)+":0", func(err error) { t.Errorf("%s: server: %v", l.Name, err) }))(t)
		s := labtest.Must(l.Dial(ctx, server.Addr))(t)
		return func(seq int) error { return s.Round(ctx, seq*4000) }, func() { check(t, s.Shutdown(ctx), s.Close(), server.Close()) }
	}
}
