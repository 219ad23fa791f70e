package privileges

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
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
)

// inChild runs a test on each device, in a process of its own: credentials belong to
// the process.
func inChild(t *testing.T, test func(t *testing.T, device string)) {
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

// drop makes the process an ordinary user's.
func drop(t *testing.T) {
	t.Helper()
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	for _, err := range []error{
		unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unlimited), // CAP_IPC_LOCK is about to go
		syscall.Setgroups(supplementary), syscall.Setgid(group), syscall.Setuid(user),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// change changes the credentials of an ordinary user's process, to what they were.
func change(t *testing.T) {
	t.Helper()
	labtest.Check(t, errors.Join(syscall.Setgid(group), syscall.Setuid(user)))
}

// within is how long anything may take.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// server echoes what its connections send.
type server struct {
	net.Listener
	wg    sync.WaitGroup
	ended chan error // gets why it accepts no more
}

func serve(t *testing.T, device string) *server {
	t.Helper()
	s := &server{ended: make(chan error, 1)}
	s.Listener = labtest.Must(rsock.Listen("rdma", labtest.AddrOf(device)+":0"))(t)
	s.wg.Go(func() {
		for {
			c, err := s.Accept()
			if err != nil {
				s.ended <- err
				return
			}
			s.wg.Go(func() {
				defer c.Close()
				if _, err := io.Copy(c, c); err != nil {
					t.Error(err)
				}
			})
		}
	})
	t.Cleanup(func() {
		s.Close()
		if err := <-s.ended; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		s.wg.Wait()
	})
	return s
}

func dial(t *testing.T, s *server) net.Conn {
	t.Helper()
	return labtest.Must((&rsock.Dialer{}).DialContext(within(t), "rdma", s.Addr().String()))(t)
}

// echo sends a message and insists that it comes back.
func echo(c net.Conn, text string) error {
	c.SetDeadline(time.Now().Add(3 * time.Minute))
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	back := make([]byte, len(text))
	if _, err := io.ReadFull(c, back); err != nil {
		return err
	}
	if string(back) != text {
		return fmt.Errorf("sent %q, %q came back", text, back)
	}
	return nil
}

// keepTalking uses a connection until the function that it returns is called.
func keepTalking(t *testing.T, c net.Conn) (stop func()) {
	stopped := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			if err := echo(c, fmt.Sprintf("message %d", i)); err != nil {
				t.Errorf("message %d: %v", i, err)
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

// connectMany makes connections, some of them at once, and uses and closes them.
func connectMany(t *testing.T, s *server, n int) {
	t.Helper()
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := worker; i < n; i += 4 {
				c, err := (&rsock.Dialer{}).DialContext(within(t), "rdma", s.Addr().String())
				if err != nil {
					t.Errorf("connection %d: %v", i, err)
					return
				}
				if err := errors.Join(echo(c, "hello"), c.Close()); err != nil {
					t.Errorf("connection %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
}

// TestDropInUse drops privileges while connections are in use, and changes
// credentials again and again.
func TestDropInUse(t *testing.T) {
	inChild(t, func(t *testing.T, device string) {
		s := serve(t, device)
		var stop []func()
		for range 4 {
			c := dial(t, s)
			defer c.Close()
			stop = append(stop, keepTalking(t, c))
		}
		drop(t)
		connectMany(t, s, 100)
		change(t)
		connectMany(t, s, 20)
		changing := make(chan struct{})
		go func() {
			defer close(changing)
			for range 10 {
				change(t)
				time.Sleep(10 * time.Millisecond)
			}
		}()
		connectMany(t, s, 40)
		<-changing
		for _, stop := range stop {
			stop()
		}
		connectMany(t, serve(t, device), 20)
	})
}

// TestDropFirst drops privileges before anything is opened.
func TestDropFirst(t *testing.T) {
	inChild(t, func(t *testing.T, device string) {
		drop(t)
		s := serve(t, device)
		connectMany(t, s, 100)
		change(t)
		connectMany(t, s, 20)
	})
}

// TestPortRefused runs a command that the kernel refuses because of the user's rights:
// the channel is not renewed for that.
func TestPortRefused(t *testing.T) {
	inChild(t, func(t *testing.T, device string) {
		drop(t)
		ch := labtest.Must(cm.NewChannel())(t)
		labtest.Close(t, ch)
		for range 3 {
			id := labtest.Must(ch.NewID())(t)
			labtest.Close(t, id)
			if err := id.Bind(netip.MustParseAddrPort(labtest.AddrOf(device) + ":7")); !errors.Is(err, unix.EACCES) {
				t.Error(err)
			}
			change(t)
		}
	})
}

// TestNodeClosed drops privileges to a user that may not open the node.
func TestNodeClosed(t *testing.T) {
	const node = "/dev/infiniband/rdma_cm"
	if os.Getenv("PRIVILEGES_CHILD") == "" {
		labtest.Require(t)
		labtest.Check(t, os.Chmod(node, 0o600))
		defer os.Chmod(node, 0o666)
	}
	inChild(t, func(t *testing.T, device string) {
		s := serve(t, device)
		c := dial(t, s)
		labtest.Check(t, echo(c, "the server has accepted"))
		drop(t)
		_, err := rsock.Dial("rdma", s.Addr().String())
		refused := func(err error) {
			t.Helper()
			if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), node) || !strings.Contains(err.Error(), "credentials") {
				t.Errorf("refused: %v", err)
			}
		}
		refused(err)
		refused(<-s.ended)
		for range 100 {
			labtest.Check(t, echo(c, "still here"))
		}
		refused(c.Close()) // the ID cannot be destroyed
		s.ended <- net.ErrClosed
	})
}
