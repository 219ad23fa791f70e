//go:build linux

package perf

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// asProgram is the environment variable that makes the test binary run as verbs perf.
const asProgram = "PERF_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := command(ctx, os.Stdout, os.Stderr, os.Args[1:]...); err != nil {
		fmt.Fprintln(os.Stderr, "verbs:", err)
		os.Exit(1)
	}
}

// command runs verbs perf in this process.
func command(ctx context.Context, stdout, stderr io.Writer, args ...string) error {
	p, err := kong.New(new(Cmd), kong.Writers(stdout, stderr), kong.BindTo(ctx, (*context.Context)(nil)), kong.Exit(func(int) {}))
	if err != nil {
		return err
	}
	k, err := p.Parse(args)
	if err != nil {
		return err
	}
	return k.Run()
}

// program is a process that runs verbs perf, or a goroutine that does so.
type program struct {
	t       *testing.T
	cmd     *exec.Cmd          // nil for a goroutine
	stop    context.CancelFunc // of a goroutine
	args    []string
	code    int         // how it ended
	lines   chan string // of its standard output
	mu      sync.Mutex
	stderr  bytes.Buffer
	changed chan struct{} // something is new in stderr
	ended   chan struct{}
}

func newProgram(t *testing.T, args []string) *program {
	return &program{t: t, args: args, lines: make(chan string, 1000), changed: make(chan struct{}, 1), ended: make(chan struct{})}
}

// read reads what the program prints, and then waits for its end.
func (p *program) read(out io.Reader, wait func() (code int)) {
	for s := bufio.NewScanner(out); s.Scan(); {
		p.lines <- s.Text()
	}
	close(p.lines)
	p.code = wait()
	close(p.ended)
}

func startProgram(t *testing.T, args ...string) *program {
	t.Helper()
	p := newProgram(t, args)
	p.cmd = exec.Command(os.Args[0], args...)
	p.cmd.Env = append(os.Environ(), asProgram+"=1")
	p.cmd.Stderr = p
	out := labtest.Must(p.cmd.StdoutPipe())(t)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.read(out, func() int { p.cmd.Wait(); return p.cmd.ProcessState.ExitCode() })
	t.Cleanup(func() { p.cmd.Process.Kill(); <-p.ended })
	return p
}

// startHere is startProgram in this process, which alone has the device in user space.
func startHere(t *testing.T, args ...string) *program {
	t.Helper()
	p := newProgram(t, args)
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	out, stdout := io.Pipe()
	failed := make(chan int, 1)
	go func() {
		code := 0
		if err := command(ctx, stdout, p, args...); err != nil {
			fmt.Fprintln(p, "verbs:", err)
			code = 1
		}
		stdout.Close()
		failed <- code
	}()
	go p.read(out, func() int { return <-failed })
	t.Cleanup(func() { stop(); <-p.ended })
	return p
}

// interrupt ends the program as Ctrl-C does.
func (p *program) interrupt() {
	p.t.Helper()
	if p.cmd == nil {
		p.stop()
		return
	}
	labtest.Check(p.t, p.cmd.Process.Signal(os.Interrupt))
}

func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case p.changed <- struct{}{}:
	default:
	}
	return p.stderr.Write(b)
}

func (p *program) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.String()
}

const testTimeout = 30 * time.Second

// waitFor waits until the program has written what to its standard error.
func (p *program) waitFor(what string) {
	p.t.Helper()
	for limit := time.After(testTimeout); !strings.Contains(p.output(), what); {
		select {
		case <-p.changed:
		case <-limit:
			p.t.Fatalf("%v does not say %q but\n%s", p.args, what, p.output())
		}
	}
}

// wait waits for the end and returns the exit code.
func (p *program) wait() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(testTimeout):
		p.t.Fatalf("%v does not end; it said\n%s", p.args, p.output())
	}
	return p.code
}

func (p *program) line() string {
	p.t.Helper()
	select {
	case l, ok := <-p.lines:
		if ok {
			return l
		}
	case <-time.After(testTimeout):
	}
	p.t.Fatalf("%v prints nothing; it said\n%s", p.args, p.output())
	return ""
}

var ports = 18600

// serve starts a server on a device.
func serve(t *testing.T, device string) (server *program, port string) {
	t.Helper()
	ports++
	port = strconv.Itoa(ports)
	start := startProgram
	if labtest.Soft {
		start = startHere
	}
	server = start(t, "server", "-p", port, "-d", device, "--json")
	server.waitFor("listening")
	return server, port
}

// measure makes a run in this process.
func measure(t *testing.T, device, port string, args ...string) (*result, error) {
	t.Helper()
	var out bytes.Buffer
	args = append(strings.Fields(args[0]), append(args[1:], labtest.AddrOf(device), "-p", port, "--json")...)
	ctx, cancel := context.WithTimeoutCause(t.Context(), testTimeout, errors.New("test took too long"))
	defer cancel()
	if err := command(ctx, &out, os.Stderr, args...); err != nil {
		return nil, err
	}
	var got document
	d := json.NewDecoder(&out)
	d.DisallowUnknownFields()
	if err := d.Decode(&got); err != nil || len(got.Results) != 1 {
		t.Fatalf("%v: %v results, %v", args, len(got.Results), err)
	}
	return got.Results[0], nil
}

// TestServerOfDevice serves clients by all addresses of a device.
func TestServerOfDevice(t *testing.T) {
	labtest.Require(t)
	labtest.Each(t, func(t *testing.T, device string) {
		_, port := serve(t, device)
		for _, addr := range labtest.AddrsOf(t, device) {
			if err := command(t.Context(), io.Discard, t.Output(), "send", "lat", addr, "-p", port, "-n", "1"); err != nil {
				t.Errorf("%s: %v", addr, err)
			}
		}
	})
}

// TestServerPort: a port that does not exist is an error, and no other port.
func TestServerPort(t *testing.T) {
	labtest.Require(t)
	if err := command(t.Context(), io.Discard, io.Discard, "server", "-d", labtest.RoCE, "-p", "70000"); err == nil || !strings.Contains(err.Error(), "70000") {
		t.Error(err)
	}
}

// TestOps makes runs of all kinds with every operation, and compares the results of both
// sides.
func TestOps(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		server, port := serve(t, device)
		for _, op := range []string{"send", "write", "read", "write-imm", "fetch-add", "cmp-swap", "ud"} {
			if f := needs[op]; f != "" && !labtest.Has(t, device, f) {
				continue
			}
			for _, c := range cases(op) {
				name := strings.Join(append([]string{op}, c...), " ")
				t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
					r, err := measure(t, device, port, name)
					if err != nil {
						t.Fatal(err)
					}
					var peer result
					if err := json.Unmarshal([]byte(server.line()), &peer); err != nil {
						t.Fatal(err)
					}
					check(t, device, op, c, r, &peer)
				})
			}
		}
		server.interrupt()
		if code := server.wait(); code != 0 {
			t.Errorf("server ended with %d: %s", code, server.output())
		}
	})
}

// TestPKeyIndex makes runs with the first P_Key, and asks for one that neither side has.
func TestPKeyIndex(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		if labtest.IWARP(t, device) {
			t.Skip("iWARP has no P_Keys")
		}
		_, port := serve(t, device)
		for _, op := range []string{"send", "ud"} {
			if _, err := measure(t, device, port, op+" lat", "-n", "1", "--pkey_index", "0"); err != nil {
				t.Errorf("%s: %v", op, err)
			}
			if _, err := measure(t, device, port, op+" lat", "-n", "1", "--pkey-index", "60000"); !errors.Is(err, verbs.ErrRange) || !strings.Contains(err.Error(), "60000 is not in 0..") {
				t.Errorf("%s with an index beyond the table: %v", op, err)
			}
		}
	})
}

const iters = 40

// cases returns lists of arguments that follow the operation.
func cases(op string) (all [][]string) {
	long, short := []string{"-s", "70001"}, []string{"-s", "1"}
	switch op {
	case "ud":
		long = []string{"-s", "1024", "--tclass", "104"}
	case "fetch-add", "cmp-swap":
		long, short = nil, nil
	}
	add := func(size []string, args ...string) {
		args = append(args, size...)
		all = append(all, append(args, "-n", strconv.Itoa(iters)))
	}
	add(short, "lat")
	add(long, "bw")
	add(short, "bw", "-e", "-q", "2")
	add(short, "bw", "-b", "-q", "3", "-t", "8", "-r", "4", "-l", "3", "-Q", "5")
	add(long, "bw", "-b", "-e", "-t", "2", "-r", "1", "-Q", "1")
	add(short, "bw", "-D", "100ms", "-l", "4")
	if op != "write" {
		add(long, "lat", "-e")
	}
	if op == "send" || op == "write" {
		add([]string{"-s", "64"}, "lat", "-I", "64")
		add(long, "lat")
	}
	return all
}

func check(t *testing.T, device, op string, args []string, r, peer *result) {
	t.Helper()
	text := strings.Join(args, " ")
	both, qps, timed := strings.Contains(text, "-b"), 1, strings.Contains(text, "-D")
	fmt.Sscanf(text[max(strings.Index(text, "-q"), 0):], "-q %d", &qps)
	want := uint64(iters * qps)
	lat, fetches := args[0] == "lat", op == "read" || op == "fetch-add" || op == "cmp-swap"
	if timed {
		want = r.Sent
		if r.Sent == 0 || r.Seconds < 0.1 {
			t.Errorf("%d messages in %v s", r.Sent, r.Seconds)
		}
	}
	if r.Role != "client" || peer.Role != "server" || r.Device != device || r.Op != op || peer.Op != op || r.Size != peer.Size {
		t.Errorf("client %+v\nserver %+v", r, peer)
	}
	if r.Sent != want || peer.PeerSent != want {
		t.Errorf("the client sent %d, the server says %d, of %d", r.Sent, peer.PeerSent, want)
	}
	back := uint64(0)
	if both || lat && !fetches {
		back = want
		if timed {
			back = peer.Sent
		}
	}
	if op != "ud" && (peer.Sent != back || r.PeerSent != back) {
		t.Errorf("the server sent %d, the client says %d, of %d", peer.Sent, r.PeerSent, back)
	}
	// The target of WRITEs and READs does not count them, except WRITEs in
	// latency tests, by the last byte.
	if counted := op != "read" && (op != "write" || lat); counted && op != "ud" && (peer.Received != want || r.Received != back) {
		t.Errorf("received: server %d of %d, client %d of %d", peer.Received, want, r.Received, back)
	}
	if op == "ud" && r.Lost != r.Sent-peer.Received+peer.Sent-r.Received {
		t.Errorf("%d lost: client %+v\nserver %+v", r.Lost, r, peer)
	}
	if lat {
		if l := r.Latency; l == nil || l.Min <= 0 || l.Min > l.P50 || l.P50 > l.P99 || l.P99 > l.Max || r.Bandwidth != nil {
			t.Errorf("latency %+v, bandwidth %+v", r.Latency, r.Bandwidth)
		}
	} else if b := r.Bandwidth; b == nil || b.Messages <= 0 && op != "ud" || b.Bytes != b.Messages*float64(r.Size) && b.Bytes < b.Messages*float64(r.Size)*0.999 || r.Latency != nil {
		t.Errorf("latency %+v, bandwidth %+v", r.Latency, r.Bandwidth)
	}
}

// needs are the features that operations need.
var needs = map[string]uverbs.Feature{
	"write-imm": uverbs.FeatureImmediates, "fetch-add": uverbs.FeatureAtomics, "cmp-swap": uverbs.FeatureAtomics, "ud": uverbs.FeatureUD,
}

// lacking holds the operations that siw lacks.
var lacking = map[string]string{
	"write-imm": "RDMA WRITE with immediate",
	"fetch-add": "atomics",
	"cmp-swap":  "atomics",
	"ud":        "UD QPs",
}

func TestUnsupported(t *testing.T) {
	labtest.RequireKernel(t)
	_, port := serve(t, labtest.SIW)
	for op, what := range lacking {
		for _, mode := range []string{"lat", "bw"} {
			_, err := measure(t, labtest.SIW, port, op, mode)
			if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), op+" on siw0: it has no "+what) {
				t.Errorf("%s %s: %v", op, mode, err)
			}
		}
	}
}
