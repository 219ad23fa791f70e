package cp

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

// replayConn is a connection to a peer that has sent all its data and receives everything.
type replayConn struct {
	net.Conn
	in  *bytes.Reader
	out bytes.Buffer
}

func (c *replayConn) Read(b []byte) (int, error)  { return c.in.Read(b) }
func (c *replayConn) Write(b []byte) (int, error) { return c.out.Write(b) }
func (c *replayConn) Close() error                { return nil }
func (c *replayConn) SetDeadline(time.Time) error { return nil }
func (c *replayConn) RemoteAddr() net.Addr        { return &net.TCPAddr{} }

// folder creates a folder with a file, and a secret file beside the folder.
func folder(t *testing.T) (*os.Root, string) {
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

// checkFolder fails the test if a peer reached files beside the folder, or left a file whose
// sum it did not send.
func checkFolder(t *testing.T, base string, data []byte) {
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
		case strings.HasPrefix(rel, "served/") && bytes.Contains(bytes.ToLower(data), []byte(hex.EncodeToString(sum[:]))):
		default:
			t.Errorf("%s holds %q", rel, text)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func lines(parts ...any) []byte {
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

func sumText(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// FuzzServer sends arbitrary data to a server.
func FuzzServer(f *testing.F) {
	f.Add(lines(message{Version: version, Op: "put", Name: "new"}, message{Size: 5, Mode: 0o644}, "hello", message{Sum: sumText("hello")}))
	f.Add(lines(message{Version: version, Op: "put", Name: "half"}, message{Size: 3, Mode: 0o644, Offset: 2}, "c", message{Sum: sumText("abc")}))
	f.Add(lines(message{Version: version, Op: "get", Name: "file"}, message{Offset: 1, Sum: sumText("a")}, message{}))
	f.Add(lines(message{Version: version, Op: "put", Name: "../secret"}, message{Size: 1}, "x", message{Sum: sumText("x")}))
	f.Add(lines(message{Version: version, Op: "put", Name: "x"}, message{Size: -1, Offset: -1}))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		root, base := folder(t)
		s := &server{root: root, log: func(string, ...any) {}}
		c := &replayConn{in: bytes.NewReader(data)}
		err := s.client(c)
		if _, theirs := errors.AsType[peerError](err); err != nil && !theirs && !isCut(err) && !strings.Contains(c.out.String(), `"error"`) {
			t.Errorf("the client does not learn of %v", err)
		}
		if bytes.Contains(c.out.Bytes(), []byte("secret")) && !bytes.Contains(data, []byte("secret")) {
			t.Errorf("the secret is out: %q", c.out.Bytes())
		}
		checkFolder(t, base, data)
	})
}

// isCut reports whether err is only due to the end of the client's data, or to a line that
// is too long.
func isCut(err error) bool {
	return strings.Contains(err.Error(), "EOF") || strings.Contains(err.Error(), "buffer full")
}

// FuzzClient sends arbitrary data to a client that gets or puts a file.
func FuzzClient(f *testing.F) {
	f.Add(lines(message{Size: 5, Mode: 0o600}, "hello", message{Sum: sumText("hello")}), false)
	f.Add(lines(message{Size: 3, Mode: 0o600, Offset: 2}, "c", message{Sum: sumText("abc")}), false)
	f.Add(lines(message{Size: 3, Offset: 1 << 40}), false)
	f.Add(lines(message{Size: -3}), false)
	f.Add(lines(message{Offset: 2, Sum: sumText("ab")}, message{Size: 3, Sum: sumText("abc")}), true)
	f.Add(lines(message{Error: "no such file", Busy: true}), true)
	f.Fuzz(func(t *testing.T, data []byte, put bool) {
		root, base := folder(t)
		local := "half"
		if put {
			local = "file"
		}
		c := transfer{remote: "x", local: local, put: put}
		from, received := int64(-1), int64(0)
		done, err := c.run(&replayConn{in: bytes.NewReader(data)}, root, func(offset, size int64) {
			if from < 0 {
				from = offset
			}
			if offset < from || from < 0 || offset > size {
				t.Errorf("%d of %d..%d", offset, from, size)
			}
			received = offset
		})
		if err == nil && done.sum == "" {
			t.Error("copied a file without a sum")
		}
		if received > 1<<20 && int(received) > len(data)+2 {
			t.Errorf("%d bytes have come, the server sent %d", received, len(data))
		}
		checkFolder(t, base, data)
	})
}

// FuzzPlan checks that for any arguments the local name stays in its folder and the remote
// one in the server's.
func FuzzPlan(f *testing.F) {
	f.Add("file", "host:", false)
	f.Add("[fd00::1]:5:n", "x", false)
	f.Add("h:99:../x", "dir/", true)
	f.Add("[", "]:", false)
	f.Add("h:a/.b.part", ".", false)
	f.Fuzz(func(t *testing.T, from, to string, multiple bool) {
		got, err := (&Cmd{Port: 7471}).plan(from, to, multiple)
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
