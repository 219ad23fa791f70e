package privileges

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/tests/workload"
)

// inChild runs a test on each device in a child process, since credentials belong to the
// process.
func inChild(t *testing.T, test func(t *testing.T, device string)) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		if os.Getenv("PRIVILEGES_CHILD") != "" {
			test(t, device)
			return
		}
		pattern := "^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", pattern, "-test.v", "-test.timeout", "4m")
		cmd.Env = append(os.Environ(), "PRIVILEGES_CHILD=1")
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		if err != nil {
			t.Fatal(err)
		}
	})
}

// The user that privileges are dropped to, and its groups.
const (
	user  = 65534
	group = 65534
)

var supplementary = []int{100, 101}

// dropPrivileges changes the process's credentials to those of an ordinary user.
func dropPrivileges(t *testing.T) {
	t.Helper()
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	for _, err := range []error{
		unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unlimited), // CAP_IPC_LOCK is about to be dropped
		syscall.Setgroups(supplementary), syscall.Setgid(group), syscall.Setuid(user),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// setCredentials sets the credentials of an ordinary user's process again, to the same values.
func setCredentials(t *testing.T) {
	t.Helper()
	labtest.Check(t, errors.Join(syscall.Setgid(group), syscall.Setuid(user)))
}

// within returns a context that limits how long any operation may take.
func within(t *testing.T) context.Context { return labtest.Within(t, 3*time.Minute) }

// server is a server of rsock that reports failures to failed.
type server struct {
	*workload.Server
	failed chan error
}

func serve(t *testing.T, device string) *server {
	t.Helper()
	s := &server{failed: make(chan error, 100)}
	report := func(err error) { s.failed <- err }
	s.Server = labtest.Must(workload.RSock.Listen(context.Background(), labtest.AddrOf(device)+":0", report))(t)
	t.Cleanup(func() {
		s.Close()
		close(s.failed)
		for err := range s.failed {
			t.Error(err)
		}
	})
	return s
}

func dial(t *testing.T, s *server) workload.Session {
	t.Helper()
	return labtest.Must(workload.RSock.Dial(within(t), s.Addr))(t)
}

// startRounds uses a connection until the function that it returns is called.
func startRounds(t *testing.T, c workload.Session) (stop func()) {
	ctx, stopped := within(t), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			if err := c.Round(ctx, i%100); err != nil {
				t.Errorf("round %d: %v", i, err)
				return
			}
			select {
			case <-stopped:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	return func() {
		close(stopped)
		wg.Wait()
	}
}

// connectMany makes n connections, four at a time, and uses and closes them.
func connectMany(t *testing.T, s *server, n int) {
	t.Helper()
	ctx := within(t)
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := worker; i < n; i += 4 {
				if err := workload.RSock.Use(ctx, s.Addr, 1, 100); err != nil {
					t.Errorf("connection %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
}

// TestDropInUse drops privileges while connections are in use, and then changes
// credentials repeatedly.
func TestDropInUse(t *testing.T) {
	inChild(t, func(t *testing.T, device string) {
		s := serve(t, device)
		var stop []func()
		for range 4 {
			c := dial(t, s)
			defer c.Close()
			stop = append(stop, startRounds(t, c))
		}
		dropPrivileges(t)
		connectMany(t, s, labtest.Rounds(100, 4))
		setCredentials(t)
		connectMany(t, s, labtest.Rounds(20, 3))
		var changing sync.WaitGroup
		change := func() {
			for range 10 {
				setCredentials(t)
				time.Sleep(10 * time.Millisecond)
			}
		}
		// A change interrupts the system calls of all threads, also siw's CONNECT. A connection that
		// ends so early may take siw's listener with it (docs/upstream/siw-listener.md).
		if device == labtest.SIW {
			change()
		} else {
			changing.Go(change)
		}
		connectMany(t, s, labtest.Rounds(40, 6))
		changing.Wait()
		for _, stop := range stop {
			stop()
		}
		connectMany(t, serve(t, device), labtest.Rounds(20, 3))
	})
}

// TestCreateWhileChanging makes IDs while other threads change credentials: each must be on the file that
// the manager has, also one that the kernel has just made.
func TestCreateWhileChanging(t *testing.T) {
	inChild(t, func(t *testing.T, device string) {
		dropPrivileges(t)
		ch := labtest.Made(cm.DefaultTransport().NewChannel())(t)
		addr := netip.AddrPortFrom(netip.MustParseAddr(labtest.AddrOf(device)), 0)
		done := make(chan struct{})
		var making sync.WaitGroup
		for range 4 {
			making.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-done:
						return
					default:
					}
					id, err := ch.NewID(cm.PortSpaceTCP)
					if err == nil {
						err = errors.Join(id.Bind(addr), id.Close())
					}
					if err != nil {
						t.Errorf("ID %d: %v", i, err)
						return
					}
				}
			})
		}
		for range labtest.Rounds(1000, 100) {
			setCredentials(t)
		}
		close(done)
		making.Wait()
	})
}

// TestDropFirst drops privileges before anything is opened.
func TestDropFirst(t *testing.T) {
	inChild(t, func(t *testing.T, device string) {
		dropPrivileges(t)
		s := serve(t, device)
		connectMany(t, s, labtest.Rounds(100, 4))
		setCredentials(t)
		connectMany(t, s, labtest.Rounds(20, 3))
	})
}

// TestPortRefused runs a command that the kernel refuses because of the user's rights: the
// channel must not be reopened for that.
func TestPortRefused(t *testing.T) {
	inChild(t, func(t *testing.T, device string) {
		dropPrivileges(t)
		ch := labtest.Made(cm.DefaultTransport().NewChannel())(t)
		for range 3 {
			id := labtest.Made(ch.NewID(0))(t)
			if err := id.Bind(netip.MustParseAddrPort(labtest.AddrOf(device) + ":7")); !errors.Is(err, unix.EACCES) {
				t.Error(err)
			}
			setCredentials(t)
		}
	})
}

// TestNodeClosed drops privileges to a user who may not open the node.
func TestNodeClosed(t *testing.T) {
	const node = "/dev/infiniband/rdma_cm"
	if os.Getenv("PRIVILEGES_CHILD") == "" {
		labtest.RequireKernel(t)
		labtest.Check(t, os.Chmod(node, 0o600))
		defer os.Chmod(node, 0o666)
	}
	inChild(t, func(t *testing.T, device string) {
		s := serve(t, device)
		c := dial(t, s)
		labtest.Check(t, c.Round(within(t), 10)) // the server has accepted
		dropPrivileges(t)
		_, err := rsock.Dial("rdma", s.Addr)
		refused := func(err error) {
			t.Helper()
			if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), node) || !strings.Contains(err.Error(), "credentials") {
				t.Errorf("refused: %v", err)
			}
		}
		refused(err)
		refused(<-s.failed) // accepting
		for range 100 {
			labtest.Check(t, c.Round(within(t), 10))
		}
		refused(c.Close())  // the ID cannot be destroyed
		refused(<-s.failed) // nor can the server's
	})
}
