package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestCPPlan(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		from, to string
		several  bool
		want     transfer
		err      string
	}{
		{"a/b", "h:", false, transfer{"h:7471", "b", "a/", "b", true}, ""},
		{"b", "h:c", false, transfer{"h:7471", "c", ".", "b", true}, ""},
		{"b", "h:99:c/d", false, transfer{"h:99", "c/d", ".", "b", true}, ""},
		{"b", "h:c/", false, transfer{"h:7471", "c/b", ".", "b", true}, ""},
		{"b", "h:c", true, transfer{"h:7471", "c/b", ".", "b", true}, ""},
		{"./x:y", "h:", false, transfer{"h:7471", "x:y", "./", "x:y", true}, ""},
		{"b", "h:99999:c", false, transfer{"h:7471", "99999:c", ".", "b", true}, ""},
		{"[fd00::1]:5:n", "x", false, transfer{"[fd00::1]:5", "n", ".", "x", false}, ""},
		{"h:c/n", dir, false, transfer{"h:7471", "c/n", dir, "n", false}, ""},
		{"h:c/n", dir, true, transfer{"h:7471", "c/n", dir, "n", false}, ""},
		{"h:n", "x", true, transfer{}, "not a directory"},
		{"a", "b", false, transfer{}, "one side must be"},
		{"h:a", "h:b", false, transfer{}, "only one side"},
		{"b", "h:../c", false, transfer{}, "not the name of a file"},
		{"b", "h:/etc/passwd", false, transfer{}, "not the name of a file"},
		{"h:", "x", false, transfer{}, "not the name of a file"},
		{"h:.x.part", "x", false, transfer{}, "being received"},
	} {
		got, err := (&cpCmd{Port: 7471}).plan(c.from, c.to, c.several)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s to %s: %v", c.from, c.to, err)
			}
		} else if got != c.want || err != nil {
			t.Errorf("%s to %s: %+v, %v", c.from, c.to, got, err)
		}
	}
}

// cpPair is a server, over TCP, and what a client of it needs.
type cpPair struct {
	addr       string
	there      string // the directory served
	here       string
	root       *os.Root
	begun, far int64 // of the last transfer
}

func newCPPair(t *testing.T, readOnly bool) *cpPair {
	t.Helper()
	p := &cpPair{there: t.TempDir(), here: t.TempDir()}
	served, err := os.OpenRoot(p.there)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.addr = l.Addr().String()
	if p.root, err = os.OpenRoot(p.here); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- (&cpServer{served, readOnly, t.Logf}).serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		served.Close()
		p.root.Close()
	})
	return p
}

func (p *cpPair) begin(offset, size int64) { p.begun = offset }
func (p *cpPair) at(offset int64)          { p.far = offset }
func (p *cpPair) end()                     {}

// over copies on a connection that breaks after some bytes, if that is not 0.
func (p *cpPair) over(t *testing.T, put bool, remote, local string, breakAfter int) error {
	t.Helper()
	conn, err := net.Dial("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	if breakAfter > 0 {
		conn = &breaking{conn, breakAfter}
	}
	c := &cpClient{root: p.root, transfer: transfer{remote: remote, local: local, put: put}, progress: p}
	return c.over(conn)
}

// breaking is a connection that breaks when so much has been read or written.
type breaking struct {
	net.Conn
	left int
}

func (b *breaking) count(n int, err error) (int, error) {
	if b.left -= n; b.left <= 0 {
		b.Close()
	}
	return n, err
}
func (b *breaking) Read(p []byte) (int, error)  { return b.count(b.Conn.Read(p)) }
func (b *breaking) Write(p []byte) (int, error) { return b.count(b.Conn.Write(p)) }

func cpWrite(t *testing.T, name string, n int, mode os.FileMode) []byte {
	t.Helper()
	b := make([]byte, n)
	r := rand.NewChaCha8(sha256.Sum256([]byte(name)))
	r.Read(b)
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
	return b
}

func cpSame(t *testing.T, name string, want []byte, mode os.FileMode) {
	t.Helper()
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) || info.Mode() != mode {
		t.Fatalf("%s: %d bytes, mode %v in place of %d, %v", name, len(got), info.Mode(), len(want), mode)
	}
}

// cpNames insists on what a directory holds.
func cpNames(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("%s holds %q, not %q", dir, got, want)
	}
}

// TestCPCopies copies files of some sizes both ways, over others, and into
// directories.
func TestCPCopies(t *testing.T) {
	p := newCPPair(t, false)
	if err := os.Mkdir(p.there+"/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{5, 0, 1, cpChunk - 1, cpChunk, 3*cpChunk + 17} {
		b := cpWrite(t, p.here+"/a", n, 0o640)
		if err := p.over(t, true, "sub/b", "a", 0); err != nil {
			t.Fatal(err)
		}
		cpSame(t, p.there+"/sub/b", b, 0o640)
		if err := p.over(t, false, "sub/b", "c", 0); err != nil {
			t.Fatal(err)
		}
		cpSame(t, p.here+"/c", b, 0o640)
	}
	cpNames(t, p.there+"/sub", "b")
	cpNames(t, p.here, "a", "c")
}

// TestCPResumes breaks connections at all points, and goes on from there.
func TestCPResumes(t *testing.T) {
	for _, put := range []bool{true, false} {
		t.Run(map[bool]string{true: "put", false: "get"}[put], func(t *testing.T) {
			p := newCPPair(t, false)
			from, to := p.there+"/f", p.here+"/f"
			if put {
				from, to = to, from
			}
			const size = 9*cpChunk + 5
			b := cpWrite(t, from, size, 0o444)
			resumed := int64(0)
			broken := 0
			for cut := range 9 {
				err := p.over(t, put, "f", "f", cpChunk+cut)
				if err == nil {
					break
				}
				if errors.As(err, new(denial)) || errors.As(err, new(fileError)) {
					time.Sleep(10 * time.Millisecond) // the other side still has the file
					continue
				}
				broken++
				resumed = max(resumed, p.begun)
				if _, err := os.Stat(to); err == nil {
					t.Fatal("the file is there before all of it is")
				}
			}
			if broken < 2 {
				t.Errorf("%d connections broke", broken)
			}
			for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				err := p.over(t, put, "f", "f", 0)
				if err == nil {
					break
				}
				if time.Now().After(end) {
					t.Fatal(err)
				}
			}
			if resumed == 0 {
				t.Error("it began anew each time")
			}
			cpSame(t, to, b, 0o444)
			cpNames(t, p.here, "f")
			cpNames(t, p.there, "f")
		})
	}
}

// TestCPBegins begins anew where what is there is not what is to come.
func TestCPBegins(t *testing.T) {
	p := newCPPair(t, false)
	b := cpWrite(t, p.here+"/f", cpChunk, 0o600)
	for _, old := range [][]byte{[]byte("other"), append(bytes.Clone(b), 1), make([]byte, 2*cpChunk)} {
		if err := os.WriteFile(p.there+"/.f.part", old, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := p.over(t, true, "f", "f", 0); err != nil {
			t.Fatal(err)
		}
		if p.begun != 0 {
			t.Errorf("went on at %d", p.begun)
		}
		cpSame(t, p.there+"/f", b, 0o600)
		cpNames(t, p.there, "f")
	}
	if err := os.WriteFile(p.there+"/.f.part", b, 0o600); err != nil { // all but the name
		t.Fatal(err)
	}
	if err := p.over(t, true, "f", "f", 0); err != nil || p.begun != cpChunk {
		t.Errorf("went on at %d: %v", p.begun, err)
	}
}

// TestCPRefuses asks for what is not to be had.
func TestCPRefuses(t *testing.T) {
	p, ro := newCPPair(t, false), newCPPair(t, true)
	secret := t.TempDir()
	cpWrite(t, secret+"/s", 10, 0o600)
	cpWrite(t, p.here+"/f", 10, 0o600)
	cpWrite(t, ro.here+"/f", 10, 0o600)
	for _, err := range []error{
		os.Symlink(secret+"/s", p.there+"/link"),
		os.Symlink(secret, p.there+"/away"),
		os.Mkdir(p.there+"/dir", 0o755),
		unix.Mkfifo(p.there+"/fifo", 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		p            *cpPair
		put          bool
		remote, want string
	}{
		{p, false, "missing", "no such file"},
		{p, false, "../" + filepath.Base(secret) + "/s", "not the name of a file"},
		{p, false, secret + "/s", "not the name of a file"},
		{p, false, "link", "path escapes"},
		{p, false, "away/s", "path escapes"},
		{p, false, "dir", "not a regular file"},
		{p, false, "fifo", "not a regular file"},
		{p, false, ".f.part", "being received"},
		{p, true, "../f", "not the name of a file"},
		{p, true, "/tmp/f", "not the name of a file"},
		{p, true, "away/f", "path escapes"},
		{p, true, "dir", "no regular file"},
		{p, true, "fifo", "no regular file"},
		{p, true, "none/f", "no such file"},
		{p, true, strings.Repeat("x", 250), "too long"},
		{p, true, "", "not the name of a file"},
		{ro, true, "f", "read only"},
	} {
		err := c.p.over(t, c.put, c.remote, "f", 0)
		if err == nil || !strings.Contains(err.Error(), c.want) || !permanent(err) {
			t.Errorf("%q, put %t: %v", c.remote, c.put, err)
		}
	}
	// A link to elsewhere is replaced, not written through.
	if err := p.over(t, true, "link", "f", 0); err == nil {
		if info, err := os.Lstat(p.there + "/link"); err != nil || !info.Mode().IsRegular() {
			t.Errorf("link is %v, %v", info, err)
		}
	}
	cpNames(t, secret, "s")
	cpNames(t, p.here, "f")
	if b, err := os.ReadFile(secret + "/s"); err != nil || len(b) != 10 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	busy, err := openPartial(p.root, "g")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	if _, err := openPartial(p.root, "g"); !errors.Is(err, errBusy) {
		t.Errorf("a file that is being received: %v", err)
	}
}

// TestCPBadPeers speaks to a server as no client does.
func TestCPBadPeers(t *testing.T) {
	p := newCPPair(t, false)
	say := func(lines ...string) string {
		conn, err := net.Dial("tcp", p.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprint(conn, strings.Join(lines, ""))
		conn.(*net.TCPConn).CloseWrite()
		answer, _ := io.ReadAll(conn)
		return string(answer)
	}
	for _, c := range []struct{ say, want string }{
		{"GET / HTTP/1.0\r\n\r\n", ""},
		{strings.Repeat("x", 2*cpLine), ""},
		{`{"version":2,"op":"put","name":"f"}` + "\n", "version 2"},
		{`{"version":1,"op":"rm","name":"f"}` + "\n", "no operation"},
		{`{"version":1,"op":"put","name":"f","size":3}` + "\n" + `{"offset":1}` + "\nabc", ""},
		{`{"version":1,"op":"put","name":"f","size":-3}` + "\n" + `{"offset":0}` + "\nabc", ""},
		{`{"version":1,"op":"put","name":"f","size":3}` + "\n" + `{"offset":0}` + "\nabc" + `{"sha256":"00"}` + "\n", "SHA-256 differs"},
	} {
		if got := say(c.say); !strings.Contains(got, c.want) {
			t.Errorf("%.60q is answered %q", c.say, got)
		}
		if _, err := os.Stat(p.there + "/f"); err == nil {
			t.Fatalf("%.60q made a file", c.say)
		}
	}
}
