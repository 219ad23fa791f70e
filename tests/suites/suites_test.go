//go:build linux

package suites

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

var run = flag.Bool("suites", false, "run the suites: fetches modules, and takes minutes")

// suite is the tests of a package.
type suite struct {
	name    string      // of the table in docs/programs.md
	module  string      // with its version; "" is the standard library
	pkg     string      // import path, or folder of the module
	modfile string      // of the module, if not go.mod
	replace [][2]string // in its tests
	args    []string
	skip    []string // tests of gigabytes
	noisy   []string // tests that count allocations, and find those of the device in user space
	// cannot has the tests that fail over RDMA, with the reason.
	cannot map[string]string
}

func (s *suite) file() string { return strings.ReplaceAll(s.name, "/", "_") }

// Reasons.
const (
	wantsTCP = "asserts *net.TCPConn or *net.TCPListener"
	fakesDNS = "dials a name that a trace of package net resolves, which the hook does not see"
	socks    = "dials through a proxy that connects by net.DialTCP"
)

// Assertions that any connection with the method satisfies.
var anyBuffer = [2][2]string{
	{".(*net.TCPConn).SetReadBuffer(", ".(interface{ SetReadBuffer(int) error }).SetReadBuffer("},
	{".(*net.TCPConn).SetWriteBuffer(", ".(interface{ SetWriteBuffer(int) error }).SetWriteBuffer("},
}

var suites = []suite{
	{name: "net/http", pkg: "net/http", args: []string{"-test.short"},
		replace: [][2]string{{".(*net.TCPConn).CloseWrite()", ".(interface{ CloseWrite() error }).CloseWrite()"}},
		cannot: map[string]string{
			"TestHijackAfterCloseNotifier": wantsTCP, "TestLinuxSendfile": wantsTCP, "TestTransportRequestWriteRoundTrip": wantsTCP,
			"TestTransportIDNA": fakesDNS, "TestTransportMaxIdleConns": fakesDNS,
			"TestTransportEventTrace": fakesDNS, "TestTransportEventTrace_NoHooks": fakesDNS,
		}},
	{name: "crypto/tls", pkg: "crypto/tls", args: []string{"-test.short"}},
	{name: "net/rpc", pkg: "net/rpc", cannot: map[string]string{"TestShutdown": wantsTCP}},
	{name: "x/crypto/ssh", module: "golang.org/x/crypto@v0.58.0", pkg: "./ssh", args: []string{"-test.short"}},
	{name: "gorilla/websocket", module: "github.com/gorilla/websocket@v1.5.3", pkg: ".", cannot: map[string]string{
		"TestSocksProxyDial": socks, "TestTracingDialWithContext": fakesDNS,
	}},
	{name: "coder/websocket", module: "github.com/coder/websocket@v1.8.15", pkg: ".", args: []string{"-test.short"}},
	{name: "xtaci/smux", module: "github.com/xtaci/smux@v1.5.58", pkg: ".", skip: []string{"^Test8GB", "^TestRandomLength"}},
	{name: "nats.go", module: "github.com/nats-io/nats.go@v1.55.0", pkg: "./test", modfile: "go_test.mod",
		replace: [][2]string{{"tl := l.(*net.TCPListener)", "tl := l"}, anyBuffer[0], anyBuffer[1]}},
	{name: "fasthttp", module: "github.com/valyala/fasthttp@v1.78.0", pkg: ".", args: []string{"-test.short"},
		replace: [][2]string{{".(*net.TCPConn).SetLinger(", ".(interface{ SetLinger(int) error }).SetLinger("}},
		cannot:  map[string]string{"TestResponseVectoredWriteThroughPerIPConn": wantsTCP},
		noisy:   []string{"^TestResponseVectoredWriteAllocations$"}},
}

// TestSuites runs each suite by TCP and by RDMA, and compares.
func TestSuites(t *testing.T) {
	if !*run {
		t.Skip("make suites runs them")
	}
	root := labtest.Must(filepath.Abs("../.."))(t)
	work := filepath.Join(root, "build", "suites")
	labtest.Check(t, os.MkdirAll(work, 0o777))
	goroot := hooked(t, root, filepath.Join(work, "go"))
	for _, s := range suites {
		t.Run(s.file(), func(t *testing.T) {
			binary, dir := s.build(t, work, goroot)
			skip := append(slices.Clone(s.skip), s.noisy...)
			for _, name := range slices.Sorted(maps.Keys(s.cannot)) {
				skip = append(skip, "^"+name+"$")
				if s.run(t, binary, dir, "rdma", "-test.run=^"+name+"$").passed[name] {
					t.Errorf("%s passes: the table says that it cannot, as it %s", name, s.cannot[name])
				}
			}
			byTCP := s.run(t, binary, dir, "tcp", append(s.args, "-test.skip="+strings.Join(s.skip, "|"))...)
			byRDMA := s.run(t, binary, dir, "rdma", append(s.args, "-test.skip="+strings.Join(skip, "|"))...)
			t.Logf("by TCP %v, by RDMA %v", byTCP, byRDMA)
			for _, name := range slices.Sorted(maps.Keys(byRDMA.failed)) {
				// Tests of theirs race with their own timers: one that fails among others is run by
				// itself.
				passed := false
				for i := 0; i < 10 && !passed; i++ {
					passed = s.run(t, binary, dir, "rdma", "-test.run=^"+name+"$").passed[name]
				}
				if !byTCP.failed[name] && !passed {
					t.Errorf("%s fails over RDMA:\n%s", name, byRDMA.output(name))
				}
			}
			if n := len(byTCP.passed) - len(s.cannot) - len(s.noisy); len(byRDMA.passed)+len(byRDMA.failed) < n {
				t.Errorf("over RDMA %d tests have ended, by TCP %d have passed:\n%s", len(byRDMA.passed)+len(byRDMA.failed), n, tail(byRDMA.text))
			}
		})
	}
}

// hooked makes a copy of GOROOT whose package net asks the hook, which package testing imports.
func hooked(t *testing.T, root, dir string) string {
	t.Helper()
	labtest.Check(t, os.RemoveAll(dir), os.MkdirAll(dir, 0o777))
	from := strings.TrimSpace(sh(t, root, "go", "env", "GOROOT"))
	for _, part := range []string{"src", "pkg", "bin", "lib", "VERSION", "go.env", "misc"} {
		if _, err := os.Stat(filepath.Join(from, part)); err == nil {
			sh(t, root, "cp", "-r", filepath.Join(from, part), dir)
		}
	}
	src := filepath.Join(dir, "src")
	sh(t, root, "cp", "tests/suites/testdata/net/hook.go", filepath.Join(src, "net", "rdmahook.go"))
	edit(t, filepath.Join(src, "net", "dial.go"), [][2]string{
		{"func (d *Dialer) DialContext(ctx context.Context, network, address string) (Conn, error) {\n",
			`func (d *Dialer) DialContext(ctx context.Context, network, address string) (Conn, error) {
	if HookDial != nil {
		ctx, cancel := d.dialCtx(ctx)
		defer cancel()
		if c, taken, err := HookDial(ctx, d, network, address); taken {
			return c, err
		}
	}
`}, {"func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (Listener, error) {\n",
			`func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (Listener, error) {
	if HookListen != nil {
		if l, taken, err := HookListen(ctx, lc, network, address); taken {
			return l, err
		}
	}
`}})
	const module = "github.com/goverbs/verbs"
	labtest.Check(t, os.WriteFile(filepath.Join(src, "testing", "rdmahook.go"), []byte("package testing\n\nimport _ \""+module+"/hook\"\n"), 0o666))
	vendor := filepath.Join(src, "vendor")
	sh(t, root, "mkdir", "-p", filepath.Join(vendor, module))
	sh(t, root, "cp", "-r", "tests/suites/testdata/hook", filepath.Join(vendor, module))
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", `{{if not .Standard}}{{.ImportPath}} {{.Dir}} {{join .GoFiles " "}} {{join .SFiles " "}} {{join .HFiles " "}} {{join .EmbedFiles " "}}{{end}}`, "./rsock", "./soft")
	list.Dir, list.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	list.Stderr = t.Output()
	for line := range strings.Lines(string(labtest.Must(list.Output())(t))) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		to := filepath.Join(vendor, f[0])
		labtest.Check(t, os.MkdirAll(to, 0o777))
		for _, name := range f[2:] {
			data := labtest.Must(os.ReadFile(filepath.Join(f[1], name)))(t)
			labtest.Check(t, os.WriteFile(filepath.Join(to, name), data, 0o666))
		}
	}
	return dir
}

// edit replaces what a file must have.
func edit(t *testing.T, file string, pairs [][2]string) {
	t.Helper()
	text := string(labtest.Must(os.ReadFile(file))(t))
	for _, p := range pairs {
		if !strings.Contains(text, p[0]) {
			t.Fatalf("%s has no %q", file, p[0])
		}
		text = strings.ReplaceAll(text, p[0], p[1])
	}
	labtest.Check(t, os.WriteFile(file, []byte(text), 0o666))
}

func sh(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, tail(string(out)))
	}
	return string(out)
}

// build compiles the suite's tests, and returns the binary and the folder to run it in.
func (s *suite) build(t *testing.T, work, goroot string) (binary, dir string) {
	t.Helper()
	dir = filepath.Join(goroot, "src", s.pkg)
	flags := []string{}
	if s.module != "" {
		flags = append(flags, "-mod=mod")
		var m struct{ Dir string }
		labtest.Check(t, json.Unmarshal([]byte(sh(t, work, "go", "mod", "download", "-json", s.module)), &m))
		copied := filepath.Join(work, strings.NewReplacer("/", "_", "@", "_").Replace(s.module))
		labtest.Check(t, os.RemoveAll(copied))
		sh(t, work, "cp", "-r", m.Dir, copied)
		sh(t, work, "chmod", "-R", "u+w", copied)
		dir = filepath.Join(copied, s.pkg)
		if s.modfile != "" {
			flags = append(flags, "-modfile="+filepath.Join(copied, s.modfile))
		}
	}
	for _, p := range s.replace {
		for _, file := range labtest.Must(filepath.Glob(filepath.Join(dir, "*_test.go")))(t) {
			if strings.Contains(string(labtest.Must(os.ReadFile(file))(t)), p[0]) {
				edit(t, file, [][2]string{p})
			}
		}
	}
	binary = filepath.Join(work, s.file()+".test")
	cmd := exec.CommandContext(t.Context(), filepath.Join(goroot, "bin", "go"), append(append([]string{"test", "-c", "-vet=off", "-o", binary}, flags...), ".")...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOROOT="+goroot, "GOWORK=off", "CGO_ENABLED=0", "GOTOOLCHAIN=local", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, tail(string(out)))
	}
	return binary, dir
}

// results are those of a run, of top-level tests.
type results struct {
	text           string
	passed, failed map[string]bool
}

func (r results) String() string {
	return fmt.Sprintf("%d passed, %d failed", len(r.passed), len(r.failed))
}

var verdict = regexp.MustCompile(`(?m)^--- (PASS|FAIL): (\S+)`)

func (s *suite) run(t *testing.T, binary, dir, network string, args ...string) results {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, binary, append([]string{"-test.v", "-test.timeout=5m"}, args...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "SUITES="+network)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	r := results{out.String(), map[string]bool{}, map[string]bool{}}
	labtest.Check(t, os.WriteFile(binary+"."+network+".txt", out.Bytes(), 0o666))
	for _, m := range verdict.FindAllStringSubmatch(r.text, -1) {
		if m[1] == "PASS" {
			r.passed[m[2]] = true
		} else {
			r.failed[m[2]] = true
		}
	}
	// After PASS, a suite's TestMain has counted goroutines, and found those of the device in user
	// space.
	if err != nil && len(r.failed) == 0 && !strings.Contains(r.text, "\nPASS\n") {
		t.Errorf("%v: %v\n%s", cmd.Args, err, tail(r.text))
	}
	return r
}

// output returns what a test printed before its verdict.
func (r results) output(test string) string {
	start := strings.Index(r.text, "=== RUN   "+test+"\n")
	end := strings.Index(r.text, "--- FAIL: "+test+" ")
	if start < 0 || end < start {
		return ""
	}
	rest := r.text[end:]
	if next := strings.Index(rest, "\n=== RUN"); next >= 0 {
		rest = rest[:next]
	}
	return tail(r.text[start:end] + rest)
}

// tail returns the last lines of a text.
func tail(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}
