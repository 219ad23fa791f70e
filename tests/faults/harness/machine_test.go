package harness

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestModules tries to unload the modules that a load uses.
func TestModules(t *testing.T) {
	runFault(t, fault{title: "the modules in use are to be unloaded", run: func(e *env) {
		c, l := e.startLoad()
		modules := []string{"rdma_ucm", "ib_uverbs", "rdma_cm", "ib_core"}
		if !isAdapter(e.device) { // whose driver leaves its users behind, as a removal does
			modules = append(modules, map[string]string{labtest.RXE: "rdma_rxe", labtest.SIW: "siw"}[e.device])
		}
		for _, m := range modules {
			err := unix.DeleteModule(m, unix.O_NONBLOCK)
			if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EBUSY) {
				e.Errorf("%s: %v", m, err)
			}
		}
		e.expectContinues(c, l, 5)
	}})
}

// TestBusy makes other processes use all processors, at a higher priority.
func TestBusy(t *testing.T) {
	runFault(t, fault{title: "others take all processors, at nice -10", run: func(e *env) {
		c, l := e.startLoad()
		for range 2 * runtime.NumCPU() {
			cmd := exec.Command("sh", "-c", "while :; do :; done")
			labtest.Check(e, cmd.Start())
			defer cmd.Wait()
			defer cmd.Process.Kill()
			if err := unix.Setpriority(unix.PRIO_PROCESS, cmd.Process.Pid, -10); err != nil {
				e.Error(err)
			}
		}
		e.expectContinues(c, l, 10)
	}})
}

// TestSignals continuously interrupts the system calls of both sides.
func TestSignals(t *testing.T) {
	runFault(t, fault{title: "every thread gets one signal after the other", quick: "cm", long: true, run: func(e *env) {
		c, l := e.startLoad()
		for _, pid := range []int{os.Getpid(), c.cmd.Process.Pid} {
			defer labtest.Signals(pid, unix.SIGURG)()
		}
		e.expectContinues(c, l, 20)
	}})
}
