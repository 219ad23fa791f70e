//go:build linux

package main

import (
	"bufio"
	"bytes"
	"math/rand/v2"
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

// TestMain lets the test binary run as verbs.
func TestMain(m *testing.M) {
	if os.Getenv("VERBS_TEST_MAIN") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// command returns verbs as a command that has not been started.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), "VERBS_TEST_MAIN=1")
	return cmd
}

// serveCP serves a directory and returns the server and its address.
func serveCP(t *testing.T, dir, addr string) (*exec.Cmd, string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		cmd := command(t, "cp", "-l", dir, "--listen", addr)
		out := labtest.Must(cmd.StdoutPipe())(t)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		if lines.Scan() {
			_, at, _ := strings.Cut(lines.Text(), " on ")
			go func() {
				for lines.Scan() {
				}
			}()
			return cmd, at
		}
		err := cmd.Wait() // the port is not free yet
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// TestCP copies a file in both directions over RDMA. During the copy the server is killed
// and restarted; the client resumes.
func TestCP(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		for _, put := range []bool{true, false} {
			t.Run(map[bool]string{true: "put", false: "get"}[put], func(t *testing.T) {
				localDir, remoteDir := t.TempDir(), t.TempDir()
				server, addr := serveCP(t, remoteDir, labtest.AddrOf(device)+":0")
				defer func() { server.Process.Kill(); server.Wait() }()
				from, to := remoteDir, localDir
				args := []string{addr + ":f", localDir + "/f"}
				if put {
					from, to = localDir, remoteDir
					args = []string{localDir + "/f", addr + ":f"}
				}
				b := writeFile(t, from+"/f", 16<<20)
				client := command(t, append([]string{"cp", "--progress"}, args...)...)
				var out, errs bytes.Buffer
				client.Stdout, client.Stderr = &out, &errs
				if err := client.Start(); err != nil {
					t.Fatal(err)
				}
				partSize := int64(0)
				for end := time.Now().Add(time.Minute); partSize < 1<<20; time.Sleep(time.Millisecond) {
					if info, err := os.Stat(filepath.Join(to, ".f.part")); err == nil {
						partSize = info.Size()
					}
					if time.Now().After(end) {
						t.Fatalf("nothing comes; the client says\n%s%s", &out, &errs)
					}
				}
				server.Process.Kill()
				server.Wait()
				if _, err := os.Stat(to + "/f"); err == nil {
					t.Fatal("the file was there before the server was killed")
				}
				if server, addr2 := serveCP(t, remoteDir, addr); addr2 != addr {
					t.Fatalf("the server is back on %s, not %s", addr2, addr)
				} else {
					defer func() { server.Process.Kill(); server.Wait() }()
				}
				if err := client.Wait(); err != nil {
					t.Fatalf("the client: %v\n%s%s", err, &out, &errs)
				}
				if got := labtest.Must(os.ReadFile(to + "/f"))(t); !bytes.Equal(got, b) {
					t.Errorf("%d bytes came of %d, or others", len(got), len(b))
				}
				if got := files(t, to); !slices.Equal(got, []string{"f"}) {
					t.Errorf("there are %q", got)
				}
				if !regexp.MustCompile(`^[0-9a-f]{64}  f  16777216 bytes\n$`).MatchString(out.String()) {
					t.Errorf("the client prints %q", &out)
				}
				for _, want := range []string{`f +\d+% `, `[KM]iB/s`, `100%`, `; trying again\n`} {
					if !regexp.MustCompile(want).MatchString(errs.String()) {
						t.Errorf("no %q in the progress: %q", want, tail(errs.String()))
					}
				}
			})
		}
	})
}

func tail(s string) string { return s[max(0, len(s)-500):] }

// TestCPFails checks that the client prints why it fails, at once if a retry cannot help.
func TestCPFails(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		localDir, remoteDir := t.TempDir(), t.TempDir()
		_, addr := serveCP(t, remoteDir, labtest.AddrOf(device)+":0")
		writeFile(t, localDir+"/f", 10)
		for _, c := range []struct {
			args []string
			want string
		}{
			{[]string{addr + ":missing", localDir + "/x"}, "no such file"},
			{[]string{localDir + "/missing", addr + ":"}, "no such file"},
			{[]string{localDir + "/f", addr + ":../f"}, "not the name of a file"},
			{[]string{localDir + "/f", addr + ":a/b/c"}, "no such file"},
			{[]string{localDir + "/f", labtest.AddrOf(device) + ":1:f"}, "refused"},
			{[]string{localDir + "/f"}, "a destination"},
			{[]string{"-l", remoteDir, "x"}, "no files"},
		} {
			out, err := command(t, append([]string{"cp"}, c.args...)...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), c.want) {
				t.Errorf("%q: %v, prints\n%s", c.args, err, out)
			}
		}
		if local, remote := files(t, localDir), files(t, remoteDir); !slices.Equal(local, []string{"f"}) || remote != nil {
			t.Errorf("failures leave %q in the local folder and %q in the remote one", local, remote)
		}
		writeFile(t, localDir+"/g", 10)
		if out, err := command(t, "cp", "-q", localDir+"/f", localDir+"/g", addr+":").CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("several files: %v\n%s", err, out)
		}
		if got := files(t, remoteDir); !slices.Equal(got, []string{"f", "g"}) {
			t.Errorf("several files: %q", got)
		}
	})
}

func writeFile(t *testing.T, name string, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{}).Read(b)
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return b
}

// files returns the names of a directory's entries.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	for _, e := range labtest.Must(os.ReadDir(dir))(t) {
		names = append(names, e.Name())
	}
	return names
}
