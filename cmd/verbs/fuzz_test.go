package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// saidConn is a connection to a peer that has said everything, and hears all.
type saidConn struct {
	net.Conn
	said  *bytes.Reader
	heard bytes.Buffer
}

func (c *saidConn) Read(b []byte) (int, error)  { return c.said.Read(b) }
func (c *saidConn) Write(b []byte) (int, error) { return c.heard.Write(b) }
func (c *saidConn) Close() error                { return nil }
func (c *saidConn) SetDeadline(time.Time) error { return nil }
func (c *saidConn) RemoteAddr() net.Addr        { return &net.TCPAddr{} }

// cpFolder is a folder with a file, and a secret beside it.
func cpFolder(t *testing.T) (*os.Root, string) {
	base := t.TempDir()
	dir := filepath.Join(base, "served")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"../secret": "secret", "file": "abc", ".half.part": "ab"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root, base
}

// checkCPFolder says whether a peer's words did what they must not: reach what
// is beside the folder, or leave a file whose sum was not told.
func checkCPFolder(t *testing.T, base string, said []byte) {
	t.Helper()
	err := filepath.WalkDir(base, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(text)
		rel, _ := filepath.Rel(base, path)
		switch {
		case rel == "secret" && string(text) == "secret", rel == "served/file" && string(text) == "abc":
		case strings.HasPrefix(rel, "served/") && isPart(rel):
		case strings.HasPrefix(rel, "served/") && bytes.Contains(bytes.ToLower(said), []byte(hex.EncodeToString(sum[:]))):
		default:
			t.Errorf("%s holds %q", rel, text)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func cpLines(parts ...any) []byte {
	var b []byte
	for _, p := range parts {
		switch p := p.(type) {
		case string:
			b = append(b, p...)
		default:
			line, _ := json.Marshal(p)
			b = append(append(b, line...), '\n')
		}
	}
	return b
}

func cpSum(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// FuzzCPServer has clients say anything to a server.
func FuzzCPServer(f *testing.F) {
	f.Add(cpLines(cpMessage{Version: 1, Op: "put", Name: "new", Size: 5, Mode: 0o644}, cpMessage{}, "hello", cpMessage{Sum: cpSum("hello")}))
	f.Add(cpLines(cpMessage{Version: 1, Op: "put", Name: "half", Size: 3, Mode: 0o644}, cpMessage{Offset: 2}, "c", cpMessage{Sum: cpSum("abc")}))
	f.Add(cpLines(cpMessage{Version: 1, Op: "get", Name: "file", Offset: 1, Sum: cpSum("a")}, cpMessage{}))
	f.Add(cpLines(cpMessage{Version: 1, Op: "put", Name: "../secret", Size: 1}, cpMessage{}, "x", cpMessage{Sum: cpSum("x")}))
	f.Add(cpLines(cpMessage{Version: 1, Op: "put", Name: "x", Size: -1}, cpMessage{Offset: -1}))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		root, base := cpFolder(t)
		s := &cpServer{root: root, log: func(string, ...any) {}}
		c := &saidConn{said: bytes.NewReader(said)}
		err := s.client(c)
		if _, theirs := errors.AsType[denial](err); err != nil && !theirs && !isCut(err) && !strings.Contains(c.heard.String(), `"error"`) {
			t.Errorf("the client is not told of %v", err)
		}
		if bytes.Contains(c.heard.Bytes(), []byte("secret")) && !bytes.Contains(said, []byte("secret")) {
			t.Errorf("the secret is out: %q", c.heard.Bytes())
		}
		checkCPFolder(t, base, said)
	})
}

// isCut says that an error is only that the client said no more, or too much at
// a time.
func isCut(err error) bool {
	return strings.Contains(err.Error(), "EOF") || strings.Contains(err.Error(), "buffer full")
}

// checkedProgress is told of what a client believes.
type checkedProgress struct {
	t          *testing.T
	from, size int64
	beginnings int
}

func (p *checkedProgress) begin(offset, size int64) {
	if offset < 0 || offset > size {
		p.t.Errorf("goes on at %d of %d", offset, size)
	}
	p.from, p.size = offset, size
	p.beginnings++
}

func (p *checkedProgress) at(offset int64) {
	if offset < p.from || offset > p.size {
		p.t.Errorf("%d of %d..%d", offset, p.from, p.size)
	}
}

func (p *checkedProgress) end() {}

// FuzzCPClient has servers say anything to a client that gets or puts a file.
func FuzzCPClient(f *testing.F) {
	f.Add(cpLines(cpMessage{Size: 5, Mode: 0o600}, "hello", cpMessage{Sum: cpSum("hello")}), false)
	f.Add(cpLines(cpMessage{Size: 3, Mode: 0o600, Offset: 2}, "c", cpMessage{Sum: cpSum("abc")}), false)
	f.Add(cpLines(cpMessage{Size: 3, Offset: 1 << 40}), false)
	f.Add(cpLines(cpMessage{Size: -3}), false)
	f.Add(cpLines(cpMessage{Offset: 2, Sum: cpSum("ab")}, cpMessage{Size: 3, Sum: cpSum("abc")}), true)
	f.Add(cpLines(cpMessage{Error: "no such file", Busy: true}), true)
	f.Fuzz(func(t *testing.T, said []byte, put bool) {
		root, base := cpFolder(t)
		local := "half"
		if put {
			local = "file"
		}
		c := &cpClient{root: root, transfer: transfer{remote: "x", local: local, put: put}, progress: &checkedProgress{t: t}}
		if err := c.over(&saidConn{said: bytes.NewReader(said)}); err == nil && c.sum == "" && !put {
			t.Error("received a file without a sum")
		}
		if c.far < 0 || c.far > 1<<20 && int(c.far) > len(said)+2 {
			t.Errorf("%d bytes have come, the server said %d", c.far, len(said))
		}
		checkCPFolder(t, base, said)
	})
}

// FuzzCPPlan: whatever is typed, the local name stays in its folder and the
// remote one in the server's.
func FuzzCPPlan(f *testing.F) {
	f.Add("file", "host:", false)
	f.Add("[fd00::1]:5:n", "x", false)
	f.Add("h:99:../x", "dir/", true)
	f.Add("[", "]:", false)
	f.Add("h:a/.b.part", ".", false)
	f.Fuzz(func(t *testing.T, from, to string, several bool) {
		got, err := (&cpCmd{Port: 7471}).plan(from, to, several)
		if err != nil {
			return
		}
		host, port, err := net.SplitHostPort(got.addr)
		if err != nil || port == "" || strings.ContainsAny(host, "/") {
			t.Errorf("%q to %q goes to %q", from, to, got.addr)
		}
		for _, name := range []string{got.remote, got.local} {
			if checkName(name) != nil || !filepath.IsLocal(partName(name)) || !isPart(partName(name)) || isPart(name) {
				t.Errorf("%q to %q: name %q", from, to, name)
			}
		}
	})
}

// FuzzPingSpot has peers of ping say anything of where their memory is: what is
// believed fits the server's buffer, and is what the other side would have said.
func FuzzPingSpot(f *testing.F) {
	f.Add(pingSpot{0x7f0000001000, 0x1234, 64}.bytes())
	f.Add(pingSpot{^uint64(0), ^uint32(0), ^uint32(0)}.bytes())
	f.Add(pingSpot{size: pingMax + 1}.bytes())
	f.Add([]byte("rdma-ping-0: ABC"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		spot, err := parsePingSpot(b)
		if (err == nil) != (len(b) == pingSpotSize) {
			t.Fatalf("%d bytes: %v", len(b), err)
		}
		if err == nil && !bytes.Equal(spot.bytes(), b) {
			t.Errorf("%x is taken for %v", b, spot)
		}
		buf := make([]byte, pingMax)
		if err == nil && spot.fits() == nil && len(text(buf[:spot.size])) > pingMax {
			t.Errorf("%v fits", spot)
		}
	})
}
