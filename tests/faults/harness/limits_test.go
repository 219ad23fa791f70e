package harness

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/workload"
)

// openFiles returns how many files a process has open.
func openFiles(t testing.TB, pid int) uint64 {
	t.Helper()
	names := labtest.Must(os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)))(t)
	return uint64(len(names))
}

// limitFiles limits the file descriptors of a process.
func limitFiles(t testing.TB, pid int, n uint64) {
	t.Helper()
	var old unix.Rlimit
	labtest.Check(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &old))
	labtest.Check(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: min(n, old.Max), Max: old.Max}, nil))
}

// TestFilesDialing dials under load with no files left, then with one, and so on.
func TestFilesDialing(t *testing.T) {
	runFault(t, fault{title: "no files are left where one dials", quick: "rmsg", long: true, run: func(e *env) {
		c, l := e.startLoad()
		var saw string
		var took time.Duration
		for room := uint64(0); ; room++ {
			limitFiles(e, os.Getpid(), openFiles(e, os.Getpid())-1+room)
			ctx, cancel := context.WithTimeout(e.Context(), roundTimeout)
			start := time.Now()
			s, err := e.layer.Dial(ctx, c.addr)
			took = max(took, time.Since(start))
			cancel()
			limitFiles(e, os.Getpid(), 1<<20)
			if err == nil {
				e.close(s)
				e.Logf("%d files do", room)
				break
			}
			if room == 40 {
				e.Fatal("40 files do not do")
			}
			saw = e.expect(wantErrors{"cm": {unix.EMFILE}, "rconn": {unix.EMFILE}, "rmsg": {unix.EMFILE}, "rsock": {unix.EMFILE}}, err)
		}
		if saw == "" {
			e.Fatal("a dial needs no files")
		}
		e.expectStillWorks(c, l, saw, took)
	}})
}

// TestFilesAccepting dials while the accepting side has no files left.
func TestFilesAccepting(t *testing.T) {
	runFault(t, fault{title: "no files are left where one accepts", run: func(e *env) {
		c, l := e.startLoad()
		pid := c.cmd.Process.Pid
		limitFiles(e, pid, openFiles(e, pid)-1)
		ctx := labtest.Within(e, 5*time.Second)
		start := time.Now()
		s, err := e.layer.Dial(ctx, c.addr)
		took := time.Since(start)
		saw := "continues"
		if err == nil {
			if err := s.Round(ctx, roundSize); err != nil {
				e.Error(err)
			}
			e.close(s) // accepting needs no files
		} else {
			saw = e.expect(wantErrors{
				"cm":    {unix.ECONNREFUSED, context.DeadlineExceeded},
				"rconn": {unix.ECONNREFUSED, context.DeadlineExceeded},
				"rmsg":  {unix.ECONNREFUSED, context.DeadlineExceeded},
				"rsock": {unix.ECONNREFUSED, context.DeadlineExceeded, os.ErrDeadlineExceeded},
			}, err)
		}
		limitFiles(e, pid, 1<<20)
		e.expectStillWorks(c, l, saw, took)
	}})
}

// dialWithMemlock runs a child that dials with locked memory limited: "layer address bytes".
func dialWithMemlock(what string) error {
	f := strings.Fields(what)
	l, err := workload.ByName(f[0])
	if err != nil {
		return err
	}
	bytes, err := strconv.ParseUint(f[2], 10, 64)
	if err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: bytes, Max: bytes}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), roundTimeout)
	defer cancel()
	s, err := l.Dial(ctx, f[1])
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Round(ctx, roundSize)
}

// TestLockedMemory dials as a user whose locked memory is limited.
func TestLockedMemory(t *testing.T) {
	runFault(t, fault{title: "locked memory is limited to 8 KiB (ulimit -l)", run: func(e *env) {
		nodes := labtest.Must(os.ReadDir("/dev/infiniband"))(e)
		for _, n := range nodes {
			labtest.Check(e, os.Chmod("/dev/infiniband/"+n.Name(), 0o666))
		}
		c := e.serve()
		start := time.Now()
		text := e.runDialWithMemlock(c, 8<<10)
		took := time.Since(start)
		if !strings.Contains(text, unix.ENOMEM.Error()) || !strings.Contains(text, "ulimit -l") {
			e.Errorf("%q, want ENOMEM and a hint", text)
		}
		if text := e.runDialWithMemlock(c, 64<<20); text != "" {
			e.Errorf("with 64 MiB: %s", text)
		}
		e.finish(c, "ENOMEM, with a hint at ulimit -l", took)
	}})
}

// runDialWithMemlock runs a child that dials without privileges, and returns its output.
func (e *env) runDialWithMemlock(c *child, memlock int) string {
	e.Helper()
	cmd := exec.Command("/proc/self/exe") // other users may not enter its folder
	cmd.Env = append(os.Environ(), fmt.Sprintf("FAULTS_DIAL=%s %s %d", e.layer.Name, c.addr, memlock))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		e.Errorf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestAddressSpace requests more memory than the process may map.
func TestAddressSpace(t *testing.T) {
	runFault(t, fault{title: "address space is limited (ulimit -v)", only: "cm rconn", run: func(e *env) {
		c, l := e.startLoad()
		var old unix.Rlimit
		labtest.Check(e, unix.Prlimit(0, unix.RLIMIT_AS, nil, &old))
		limited := old
		limited.Cur = addressSpace(e) + 256<<20
		labtest.Check(e, unix.Prlimit(0, unix.RLIMIT_AS, &limited, nil))
		start := time.Now()
		var err error
		switch s := l.s.(type) {
		case *workload.Endpoint:
			_, err = s.AllocMR(1<<30, 1)
		case *workload.Conn:
			_, err = s.Alloc(1<<30, 1)
		}
		took := time.Since(start)
		saw := e.expect(wantErrors{"cm": {unix.ENOMEM}, "rconn": {unix.ENOMEM}}, err)
		labtest.Check(e, unix.Prlimit(0, unix.RLIMIT_AS, &old, nil))
		e.expectStillWorks(c, l, saw, took)
	}})
}

// addressSpace returns the size of the process's address space in bytes.
func addressSpace(t testing.TB) uint64 {
	t.Helper()
	f := labtest.Must(os.Open("/proc/self/status"))(t)
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var kib uint64
		if _, err := fmt.Sscanf(s.Text(), "VmSize: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	t.Fatal("no VmSize")
	return 0
}
