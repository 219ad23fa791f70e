package hosts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/workload"
)

// peerAddr is the address at which the peer receives calls.
const peerAddr = "10.9.9.2:9"

func servePeer() error {
	s := rpc.NewServer()
	if err := s.Register(&Peer{programs: map[int]*program{}}); err != nil {
		return err
	}
	l, err := net.Listen("tcp", peerAddr)
	if err != nil {
		return err
	}
	s.Accept(l)
	return errors.New("the listener for calls is closed")
}

// Peer has the methods that the second machine runs when they are called. They may run
// concurrently.
type Peer struct {
	mu       sync.Mutex
	programs map[int]*program
	servers  []context.CancelFunc
	failures []error
}

// ServeArgs holds a layer and the address at which it listens.
type ServeArgs struct{ Layer, Addr string }

// Serve starts a server of a layer that runs until StopServers, and returns its address.
func (p *Peer) Serve(s ServeArgs, at *string) (err error) {
	l, err := workload.ByName(s.Layer)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	p.mu.Lock()
	defer p.mu.Unlock()
	server, err := l.Listen(ctx, s.Addr, func(err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if errors.Is(err, workload.ErrData) {
			p.failures = append(p.failures, fmt.Errorf("%s: %w", s.Layer, err))
		}
	})
	if err != nil {
		stop()
		return err
	}
	p.servers = append(p.servers, stop)
	*at = server.Addr
	return nil
}

// StopServers ends the servers. The error reports wrong data that they received.
func (p *Peer) StopServers(struct{}, *struct{}) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, stop := range p.servers {
		stop()
	}
	err := errors.Join(p.failures...)
	p.servers, p.failures = nil, nil
	return err
}

// UseArgs holds a layer, the address of a server, and the number and size of rounds.
type UseArgs struct {
	Layer, Addr  string
	Rounds, Size int
}

// Use does rounds with a server.
func (p *Peer) Use(u UseArgs, _ *struct{}) error {
	l, err := workload.ByName(u.Layer)
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.Background(), workTimeout)
	defer stop()
	return l.Use(ctx, u.Addr, u.Rounds, u.Size)
}

// Start starts a program and returns its number.
func (p *Peer) Start(args []string, id *int) error {
	prog, err := startProgram(args)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	*id = len(p.programs)
	p.programs[*id] = prog
	return nil
}

// Wait waits for a program, and returns its output.
func (p *Peer) Wait(id int, output *string) error {
	p.mu.Lock()
	prog := p.programs[id]
	p.mu.Unlock()
	var err error
	*output, err = prog.wait()
	return err
}

// BootID returns an ID that changes whenever the machine is booted.
func (p *Peer) BootID(_ struct{}, id *string) error {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	*id = string(b)
	return err
}

// Crash resets the machine at once, without an answer.
func (p *Peer) Crash(struct{}, *struct{}) error {
	return os.WriteFile("/proc/sysrq-trigger", []byte("b"), 0)
}

// program is a running program, which is killed after programTime.
type program struct {
	cmd  *exec.Cmd
	out  bytes.Buffer
	stop context.CancelFunc
}

func startProgram(args []string) (*program, error) {
	ctx, stop := context.WithTimeout(context.Background(), programTime)
	p := &program{cmd: exec.CommandContext(ctx, args[0], args[1:]...), stop: stop}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	return p, p.cmd.Start()
}

func (p *program) wait() (string, error) {
	defer p.stop()
	if err := p.cmd.Wait(); err != nil {
		return "", fmt.Errorf("%v: %w\n%s", p.cmd, err, &p.out)
	}
	return p.out.String(), nil
}

// peer is the second machine as the tests see it.
type peer struct {
	rpc    *rpc.Client
	bootID string // ID of its last boot
}

// workTimeout limits the time of one step of work. The machines may be very slow.
const workTimeout = 2 * time.Minute

// programTime is how long a program may run: TestObjects moves a gigabyte each way.
const programTime = 10 * time.Minute

// bootTimeout is how long a machine may take until it answers.
const bootTimeout = 5 * time.Minute

// dialPeer waits until the peer answers.
func dialPeer(t *testing.T) *peer {
	t.Helper()
	labtest.RequireKernel(t)
	if os.Getenv("VERBS_HOST") == "" {
		t.Skip("needs two machines: run by make hosts, or with LAB_PEER=6.1 and go test -exec build/lab")
	}
	p := &peer{}
	p.reconnect(t)
	t.Cleanup(func() { p.rpc.Close() })
	return p
}

// reconnect waits until the peer answers after another boot.
func (p *peer) reconnect(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(bootTimeout); ; time.Sleep(100 * time.Millisecond) {
		c, boot, err := tryPeer()
		if err == nil && boot != p.bootID {
			p.rpc, p.bootID = c, boot
			return
		}
		if err == nil {
			c.Close()
		}
		if time.Now().After(end) {
			t.Fatalf("the peer does not come up: %v", err)
		}
	}
}

// tryPeer connects to the peer and returns the ID of its boot.
func tryPeer() (_ *rpc.Client, boot string, _ error) {
	conn, err := net.DialTimeout("tcp", peerAddr, 2*time.Second)
	if err != nil {
		return nil, "", err
	}
	conn.SetDeadline(time.Now().Add(2 * time.Second))
	c := rpc.NewClient(conn)
	if err := c.Call("Peer.BootID", struct{}{}, &boot); err != nil {
		c.Close()
		return nil, "", err
	}
	conn.SetDeadline(time.Time{})
	return c, boot, nil
}

// crash resets the peer's machine, and waits until it is back.
func (p *peer) crash(t *testing.T) {
	t.Helper()
	old := p.rpc
	crashed := old.Go("Peer.Crash", struct{}{}, &struct{}{}, make(chan *rpc.Call, 1))
	p.reconnect(t)
	old.Close()
	<-crashed.Done
}

func (p *peer) call(t *testing.T, method string, args, reply any) {
	t.Helper()
	if err := p.rpc.Call("Peer."+method, args, reply); err != nil {
		t.Fatalf("%s %v: %v", method, args, err)
	}
}

// start starts a program on a host, and returns a function that waits for it.
func (p *peer) start(t *testing.T, host int, args ...string) (wait func() string) {
	t.Helper()
	if host == 1 {
		prog := labtest.Must(startProgram(args))(t)
		return func() string {
			t.Helper()
			out := labtest.Must(prog.wait())(t)
			return out
		}
	}
	var id int
	p.call(t, "Start", args, &id)
	return func() (output string) {
		t.Helper()
		p.call(t, "Wait", id, &output)
		return output
	}
}

// run runs a program on a host to its end.
func (p *peer) run(t *testing.T, host int, args ...string) string {
	t.Helper()
	return p.start(t, host, args...)()
}

// awaitTCP waits until a program on a host listens at a port of TCP.
func (p *peer) awaitTCP(t *testing.T, host int, port string) {
	t.Helper()
	p.run(t, host, "sh", "-c", "until ss -Hltn | grep -q ':"+port+" '; do sleep 0.05; done")
}

// awaitCM waits until a program on a host listens at a port of the connection manager.
func (p *peer) awaitCM(t *testing.T, host int, port string) {
	t.Helper()
	p.run(t, host, "sh", "-c", "until rdma resource show cm_id | grep LISTEN | grep -q ':"+port+" '; do sleep 0.05; done")
}

// serve runs a server of a layer on the peer until the test ends.
func (p *peer) serve(t *testing.T, l *workload.Layer, d driver) (at string) {
	t.Helper()
	p.call(t, "Serve", ServeArgs{l.Name, d.hostAddr(2)}, &at)
	t.Cleanup(func() {
		if err := p.rpc.Call("Peer.StopServers", struct{}{}, &struct{}{}); err != nil {
			t.Error(err)
		}
	})
	return at
}
