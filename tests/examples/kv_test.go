//go:build linux

package examples

import (
	"bufio"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestKV reads keys while the server changes them, and checks that the server's program is
// idle while a client reads.
func TestKV(t *testing.T) {
	each(t, func(t *testing.T, _, host string) {
		server := command(t, labtest.Within(t, time.Minute), "kv", "serve", host+":0")
		pairs := labtest.Must(server.StdinPipe())(t)
		_, addr := listen(t, server)
		for i := range 1000 {
			fmt.Fprintf(pairs, "key%d value of %d\n", i, i)
		}
		fmt.Fprintf(pairs, "empty\nlast yes\n")
		labtest.Until(t, "the server to read all pairs", func() bool {
			out, _, exit := run(t, "kv", addr, "get", "last")
			return exit == 0 && out == "yes\n"
		})
		out, errs, exit := run(t, "kv", addr, "get", "key0", "key999", "empty", "key500")
		if out != "value of 0\nvalue of 999\n\nvalue of 500\n" || exit != 0 {
			t.Errorf("exit status %d, output\n%s%s", exit, out, errs)
		}
		out, errs, exit = run(t, "kv", addr, "get", "nothing")
		refused(t, out, errs, exit, regexp.MustCompile(`^key "nothing": no such key\n$`))

		stop, stopped := make(chan bool), make(chan bool)
		go func() { // the reads that follow may find a slot that is being written
			defer close(stopped)
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					fmt.Fprintf(pairs, "key7 %s\n", strings.Repeat(string(rune('a'+i%26)), 100))
				}
			}
		}()
		out, errs, exit = run(t, "kv", addr, "bench", "key7", "3000")
		close(stop)
		<-stopped
		if !strings.HasPrefix(out, "3000 reads in ") || exit != 0 {
			t.Errorf("exit status %d, output\n%s%s", exit, out, errs)
		}
		fmt.Fprintf(pairs, "key8 done\n")
		labtest.Until(t, "the server to read the rest", func() bool {
			out, _, _ := run(t, "kv", addr, "get", "key8")
			return out == "done\n"
		})

		if labtest.Soft { // the program is the device
			return
		}
		const most = 100 * time.Millisecond
		took := most + 1
		for try := 0; took > most && try < 3; try++ { // beside other load an emulated processor seems to run for longer than it does
			before := processorTime(t, server.Process.Pid)
			run(t, "kv", addr, "bench", "key1", "3000")
			took = processorTime(t, server.Process.Pid) - before
			t.Logf("3000 reads by a client: the server used %v", took)
		}
		if took > most {
			t.Errorf("the server used the processor for %v", took)
		}
	})
}

// processorTime returns for how long a process has run on a processor.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	var used unix.Timespec
	const processorClock = 2 // CPUCLOCK_SCHED in linux/posix-timers.h
	labtest.Check(t, unix.ClockGettime(int32(^pid<<3|processorClock), &used))
	return time.Duration(used.Nano())
}

// TestKVInput: the server says why it reads no more pairs.
func TestKVInput(t *testing.T) {
	each(t, func(t *testing.T, _, host string) {
		server := command(t, labtest.Within(t, time.Minute), "kv", "serve", host+":0")
		server.Stdin = strings.NewReader(strings.Repeat("x", 100_000))
		errs := bufio.NewScanner(labtest.Must(server.StderrPipe())(t))
		listen(t, server)
		if errs.Scan(); !strings.Contains(errs.Text(), "token too long") {
			t.Errorf("the server prints %q", errs.Text())
		}
	})
}
