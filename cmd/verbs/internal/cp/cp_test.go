//go:build linux

package cp

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

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
)

func TestPlan(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		from, to string
		multiple bool
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
		got, err := (&Cmd{Port: 7471}).plan(c.from, c.to, c.multiple)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s to %s: %v", c.from, c.to, err)
			}
		} else if got != c.want || err != nil {
			t.Errorf("%s to %s: %+v, %v", c.from, c.to, got, err)
		}
	}
}

// pair is a server over TCP and the state of its client.
type pair struct {
	addr      string
	remoteDir string // the directory served
	localDir  string
	root      *os.Root
	from      int64 // offset at which the last transfer started; -1 if it did not
}

func newPair(t *testing.T, readOnly bool) *pair {
	t.Helper()
	p := &pair{remoteDir: t.TempDir(), localDir: t.TempDir()}
	served, err := os.OpenRoot(p.remoteDir)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.addr = l.Addr().String()
	if p.root, err = os.OpenRoot(p.localDir); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- cli.Serve(ctx, l, (&server{served, readOnly, t.Logf}).handle) }()
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

// run copies on a connection that breaks after breakAfter bytes, unless that is 0.
func (p *pair) run(t *testing.T, put bool, remote, local string, breakAfter int) error {
	t.Helper()
	conn, err := net.Dial("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	if breakAfter > 0 {
		conn = &breaking{conn, breakAfter}
	}
	c := transfer{remote: remote, local: local, put: put}
	p.from = -1
	_, err = c.run(conn, p.root, func(offset, size int64) {
		if p.from < 0 {
			p.from = offset
		}
	})
	return err
}

// breaking is a connection that breaks after left bytes have been read or written.
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

func writeFile(t *testing.T, name string, n int, mode os.FileMode) []byte {
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

func same(t *testing.T, name string, want []byte, mode os.FileMode) {
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
		t.Fatalf("%s: %d bytes, mode %v instead of %d, %v", name, len(got), info.Mode(), len(want), mode)
	}
}

// names checks the entries of a directory.
func names(t *testing.T, dir string, want ...string) {
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

// TestCopies copies files of several sizes in both directions, over existing files, and
// into directories.
func TestCopies(t *testing.T) {
	p := newPair(t, false)
	if err := os.Mkdir(p.remoteDir+"/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{5, 0, 1, chunk - 1, chunk, 3*chunk + 17} {
		b := writeFile(t, p.localDir+"/a", n, 0o640)
		if err := p.run(t, true, "sub/b", "a", 0); err != nil {
			t.Fatal(err)
		}
		same(t, p.remoteDir+"/sub/b", b, 0o640)
		if err := p.run(t, false, "sub/b", "c", 0); err != nil {
			t.Fatal(err)
		}
		same(t, p.localDir+"/c", b, 0o640)
	}
	names(t, p.remoteDir+"/sub", "b")
	names(t, p.localDir, "a", "c")
}

// TestResumes breaks connections at several points and resumes from there.
func TestResumes(t *testing.T) {
	for _, put := range []bool{true, false} {
		t.Run(map[bool]string{true: "put", false: "get"}[put], func(t *testing.T) {
			p := newPair(t, false)
			from, to := p.remoteDir+"/f", p.localDir+"/f"
			if put {
				from, to = to, from
			}
			const size = 9*chunk + 5
			b := writeFile(t, from, size, 0o444)
			resumed := int64(0)
			breaks := 0
			for cut := range 9 {
				err := p.run(t, put, "f", "f", chunk+cut)
				if err == nil {
					break
				}
				if !errors.As(err, new(connError)) {
					time.Sleep(10 * time.Millisecond) // the other side still locks the file
					continue
				}
				breaks++
				resumed = max(resumed, p.from)
				if _, err := os.Stat(to); err == nil {
					t.Fatal("the file is there before all of it is")
				}
			}
			if breaks < 2 {
				t.Errorf("%d connections broke", breaks)
			}
			for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				err := p.run(t, put, "f", "f", 0)
				if err == nil {
					break
				}
				if time.Now().After(end) {
					t.Fatal(err)
				}
			}
			if resumed == 0 {
				t.Error("it started again each time")
			}
			same(t, to, b, 0o444)
			names(t, p.localDir, "f")
			names(t, p.remoteDir, "f")
		})
	}
}

// TestStartsAgain starts from 0 when the partial file is not the start of the source.
func TestStartsAgain(t *testing.T) {
	p := newPair(t, false)
	b := writeFile(t, p.localDir+"/f", chunk, 0o600)
	for _, old := range [][]byte{[]byte("other"), append(bytes.Clone(b), 1), make([]byte, 2*chunk)} {
		if err := os.WriteFile(p.remoteDir+"/.f.part", old, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := p.run(t, true, "f", "f", 0); err != nil {
			t.Fatal(err)
		}
		if p.from != 0 {
			t.Errorf("went on at %d", p.from)
		}
		same(t, p.remoteDir+"/f", b, 0o600)
		names(t, p.remoteDir, "f")
	}
	if err := os.WriteFile(p.remoteDir+"/.f.part", b, 0o600); err != nil { // complete, but not renamed
		t.Fatal(err)
	}
	if err := p.run(t, true, "f", "f", 0); err != nil || p.from != chunk {
		t.Errorf("went on at %d: %v", p.from, err)
	}
}

// TestRefuses requests copies that must be refused.
func TestRefuses(t *testing.T) {
	p, ro := newPair(t, false), newPair(t, true)
	secret := t.TempDir()
	writeFile(t, secret+"/s", 10, 0o600)
	writeFile(t, p.localDir+"/f", 10, 0o600)
	writeFile(t, ro.localDir+"/f", 10, 0o600)
	for _, err := range []error{
		os.Symlink(secret+"/s", p.remoteDir+"/link"),
		os.Symlink(secret, p.remoteDir+"/away"),
		os.Mkdir(p.remoteDir+"/dir", 0o755),
		unix.Mkfifo(p.remoteDir+"/fifo", 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		p            *pair
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
		err := c.p.run(t, c.put, c.remote, "f", 0)
		if err == nil || !strings.Contains(err.Error(), c.want) || temporary(err) {
			t.Errorf("%q, put %t: %v", c.remote, c.put, err)
		}
	}
	// A link that leads out is replaced, not followed.
	if err := p.run(t, true, "link", "f", 0); err == nil {
		if info, err := os.Lstat(p.remoteDir + "/link"); err != nil || !info.Mode().IsRegular() {
			t.Errorf("link is %v, %v", info, err)
		}
	}
	names(t, secret, "s")
	names(t, p.localDir, "f")
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

// TestBadPeers sends a server lines that break the protocol.
func TestBadPeers(t *testing.T) {
	p := newPair(t, false)
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
		{strings.Repeat("x", 2*maxLine), ""},
		{`{"version":1,"op":"put","name":"f"}` + "\n", "version 1"},
		{`{"version":2,"op":"rm","name":"f"}` + "\n", "no operation"},
		{`{"version":2,"op":"put","name":"f"}` + "\n" + `{"size":3,"offset":1}` + "\nabc", ""},
		{`{"version":2,"op":"put","name":"f"}` + "\n" + `{"size":-3,"offset":0}` + "\nabc", ""},
		{`{"version":2,"op":"put","name":"f"}` + "\n" + `{"size":3,"offset":0}` + "\nabc" + `{"sha256":"00"}` + "\n", "SHA-256 differs"},
	} {
		if got := say(c.say); !strings.Contains(got, c.want) {
			t.Errorf("%.60q is answered %q", c.say, got)
		}
		if _, err := os.Stat(p.remoteDir + "/f"); err == nil {
			t.Fatalf("%.60q made a file", c.say)
		}
	}
}
