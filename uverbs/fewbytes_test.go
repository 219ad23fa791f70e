package uverbs_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestFewBytesAtATime posts many short messages at a time. After every 100
// packets siw leaves the rest to a thread of its own, which does not find their
// bytes if it comes to them before the caller is out of the doorbell. Here it
// does, now and then.
func TestFewBytesAtATime(t *testing.T) {
	const sends, few = 110, 8
	labtest.Each(t, func(t *testing.T, device string) {
		a, b := labtest.NewPair(t, labtest.PairOptions{Device: device, Memory: sends * few, Cap: uverbs.QPCap{
			MaxSendWR: sends, MaxRecvWR: sends, MaxSendSGE: 1, MaxRecvSGE: 1,
		}})
		for i := range a.MR.Bytes() {
			a.MR.Bytes()[i] = byte(i*7 + i/256)
		}
		var wrs []uverbs.SendWR
		var recvs []uverbs.RecvWR
		for i := range sends {
			wrs = append(wrs, uverbs.SendWR{ID: uint64(i), Opcode: uverbs.OpSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{a.MR.SGE(i*few, few)}})
			recvs = append(recvs, uverbs.RecvWR{ID: uint64(i), SGL: []uverbs.SGE{b.MR.SGE(i*few, few)}})
		}
		round := func() {
			clear(b.MR.Bytes())
			if _, err := b.PostRecv(recvs...); err != nil {
				t.Fatal(err)
			}
			if n, err := a.QP.PostSend(wrs); n != len(wrs) || err != nil {
				t.Fatalf("posted %d: %v", n, err)
			}
			for range sends {
				next(t, a.SendCQ)
				next(t, b.RecvCQ)
			}
			if !bytes.Equal(a.MR.Bytes(), b.MR.Bytes()) {
				t.Fatalf("received %x, want %x", b.MR.Bytes(), a.MR.Bytes())
			}
		}
		// One of the two is not that of the thread.
		preemptible(t)
		for cpu := range 2 {
			interrupted(t, cpu, 2*time.Second, round)
		}
	})
}

// preemptible has the kernel give up a processor wherever it is, and siw's
// threads run when they are woken, until the test ends.
func preemptible(t *testing.T) {
	const file = "/sys/kernel/debug/sched/preempt" // such as "none (voluntary) full"
	modes := string(labtest.Must(os.ReadFile(file))(t))
	_, mode, _ := strings.Cut(modes, "(")
	mode, _, _ = strings.Cut(mode, ")")
	set := func(mode string) {
		if err := os.WriteFile(file, []byte(mode), 0); err != nil {
			t.Fatal(err)
		}
	}
	set("full")
	t.Cleanup(func() { set(mode) })
	for _, comm := range labtest.Must(filepath.Glob("/proc/[0-9]*/comm"))(t) {
		if name, _ := os.ReadFile(comm); bytes.HasPrefix(name, []byte("siw_tx/")) {
			thread := labtest.Must(strconv.Atoi(filepath.Base(filepath.Dir(comm))))(t)
			realtime(t, thread, unix.SCHED_FIFO, 1)
			t.Cleanup(func() { realtime(t, thread, unix.SCHED_NORMAL, 0) })
		}
	}
}

// interrupted calls f again and again, for a while, on a processor that it loses
// for moments, with another process on the others. Where a switch takes as long
// as a moment, f does not get on before the while is over.
func interrupted(t *testing.T, cpu int, while time.Duration, f func()) {
	const moment = 100 * time.Microsecond
	end := time.Now().Add(while)
	for other := range runtime.NumCPU() {
		if other != cpu {
			p := exec.Command("sh", "-c", "while :; do :; done")
			if err := p.Start(); err != nil {
				t.Fatal(err)
			}
			defer p.Wait()
			defer p.Process.Kill()
			pin(t, p.Process.Pid, other)
		}
	}
	var interrupter sync.WaitGroup
	interrupter.Go(func() {
		runtime.LockOSThread() // which ends with this function
		pin(t, 0, cpu)
		realtime(t, 0, unix.SCHED_FIFO, 2)
		for time.Now().Before(end) {
			ts := unix.NsecToTimespec(moment.Nanoseconds())
			unix.Nanosleep(&ts, nil)
			spin(moment)
		}
	})
	defer interrupter.Wait()
	runtime.LockOSThread() // which ends with the test
	pin(t, 0, cpu)
	for time.Now().Before(end) {
		f()
	}
}

func spin(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
	}
}

func pin(t *testing.T, thread, cpu int) {
	var one unix.CPUSet
	one.Set(cpu)
	if err := unix.SchedSetaffinity(thread, &one); err != nil {
		t.Error(err)
	}
}

func realtime(t *testing.T, thread int, policy, priority uint32) {
	if err := unix.SchedSetAttr(thread, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: policy, Priority: priority}, 0); err != nil {
		t.Error(err)
	}
}
