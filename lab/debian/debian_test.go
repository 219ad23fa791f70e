//go:build linux

package debian

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
)

// mirror is a mirror of an archive that a test makes, with suites "stable" and "stable-security".
type mirror struct {
	t       *testing.T
	key     *openpgp.Entity
	files   map[string][]byte
	lists   map[string]string // by suite
	sources string            // list of the suite stable

	validUntil string
	fetched    int
	endless    string // end of the path of a file that the mirror never ends
	archive    Archive
}

func newMirror(t *testing.T) *mirror {
	key, err := openpgp.NewEntity("test", "", "test@example.com", nil)
	if err != nil {
		t.Fatal(err)
	}
	var ring bytes.Buffer
	if err := key.Serialize(&ring); err != nil {
		t.Fatal(err)
	}
	m := &mirror{t: t, key: key, files: map[string][]byte{}, lists: map[string]string{}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.fetched++
		if b, ok := m.files[r.URL.Path]; ok && m.endless != "" && strings.HasSuffix(r.URL.Path, m.endless) {
			w.Write(b)
			for range 16 { // MiB, more than any bound of the tests
				w.Write(make([]byte, 1<<20))
			}
		} else if ok {
			w.Write(b)
		} else {
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	m.archive = Archive{Suite: "stable-security", Dir: t.TempDir(), Mirror: s.URL + "/debian", Keys: ring.Bytes()}
	return m
}

// add adds a package with a file of its name and version.
func (m *mirror) add(suite, name, version, more string) {
	deb := buildDeb(m.t, []tar.Header{
		{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "./usr/share/" + name, Typeflag: tar.TypeReg, Mode: 0o640, ModTime: time.Unix(1e9, 0)},
		{Name: "./usr/share/" + name + ".hard", Typeflag: tar.TypeLink, Linkname: "./usr/share/" + name},
		{Name: "./" + name + ".soft", Typeflag: tar.TypeSymlink, Linkname: "usr/share/" + name},
	}, version)
	file := fmt.Sprintf("pool/%s_%s.deb", name, version)
	m.files[m.base(suite)+file] = deb
	if more != "" {
		more += "\n"
	}
	m.lists[suite] += fmt.Sprintf("Package: %s\nVersion: %s\nDescription: a\n b: c\nFilename: %s\nSize: %d\nSHA256: %x\n%s\n", name, version, file, len(deb), sha256.Sum256(deb), more)
}

func (m *mirror) base(suite string) string {
	if strings.HasSuffix(suite, "-security") {
		return "/debian-security/"
	}
	return "/debian/"
}

// publish signs the suites.
func (m *mirror) publish() {
	for _, suite := range []string{"stable", "stable-security"} {
		dir := m.base(suite) + "dists/" + suite + "/"
		release := fmt.Sprintf("Suite: %s\nValid-Until: %s\nMD5Sum:\n 00 1 main/binary-amd64/Packages.gz\nSHA256:\n", suite, m.validUntil)
		lists := map[string]string{"main/binary-amd64/Packages.gz": m.lists[suite], "main/source/Sources.gz": m.sources}
		if suite == "stable" { // its updates have ended for old
			lists["main/binary-old/Packages.gz"] = m.lists[suite]
		}
		for name, text := range lists {
			var list bytes.Buffer
			z := gzip.NewWriter(&list)
			z.Write([]byte(text))
			z.Close()
			sum := sha256.Sum256(list.Bytes())
			m.files[dir+filepath.Dir(name)+fmt.Sprintf("/by-hash/SHA256/%x", sum)] = list.Bytes()
			release += fmt.Sprintf(" %x %d %s\n", sum, list.Len(), name)
		}
		m.sign(dir+"InRelease", release)
	}
}

func (m *mirror) sign(file, text string) {
	var b bytes.Buffer
	w, err := clearsign.Encode(&b, m.key.PrivateKey, nil)
	if err == nil {
		w.Write([]byte(text))
		err = w.Close()
	}
	if err != nil {
		m.t.Fatal(err)
	}
	m.files[file] = b.Bytes()
}

// buildDeb makes a package whose regular files contain text.
func buildDeb(t *testing.T, headers []tar.Header, text string) []byte {
	t.Helper()
	var data bytes.Buffer
	z := gzip.NewWriter(&data)
	w := tar.NewWriter(z)
	for _, h := range headers {
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(text))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			w.Write([]byte(text))
		}
	}
	w.Close()
	z.Close()
	deb := []byte("!<arch>\n")
	for _, member := range []struct {
		name string
		data []byte
	}{{"debian-binary", []byte("2.0")}, {"data.tar.gz", data.Bytes()}} {
		deb = fmt.Appendf(deb, "%-16s%-12d%-6d%-6d%-8o%-10d`\n", member.name, 0, 0, 0, 0o644, len(member.data))
		if deb = append(deb, member.data...); len(member.data)%2 == 1 {
			deb = append(deb, '\n')
		}
	}
	return deb
}

func TestArchive(t *testing.T) {
	m := newMirror(t)
	m.add("stable-security", "kernel", "6.9-1", "Depends: modules (= 6.9-1), libc:any | musl\nProvides: linux (= 6)")
	m.add("stable-security", "kernel", "6.10-1", "Pre-Depends: modules (= 6.10-1)\nDepends: nothing | musl, shell")
	m.add("stable-security", "modules", "6.10-1", "")
	m.add("stable", "modules", "7.0-1", "")
	m.add("stable", "musl", "1", "Depends: kernel")
	m.add("stable", "dash", "1", "Provides: sh, shell")
	m.publish()
	ctx, a := t.Context(), m.archive

	p, err := a.Find(ctx, "kernel")
	if want := (Package{"kernel", "6.10-1"}); p != want || err != nil {
		t.Error(p, err)
	}
	if p, err := a.Find(ctx, "modules"); p.Version != "6.10-1" || err != nil { // not that of the release
		t.Error(p, err)
	}
	if deps, err := a.Depends(ctx, "kernel"); fmt.Sprint(deps) != "[modules nothing shell]" || err != nil {
		t.Error(deps, err)
	}
	if list, err := a.Closure(ctx, []Package{{"modules", "6.10-1"}}, "kernel=6.10-1"); fmt.Sprint(list) != "[{musl 1} {dash 1} {kernel 6.10-1}]" || err != nil {
		t.Error(list, err)
	}
	for _, name := range []string{"absent", "shell"} {
		if _, err := a.Find(ctx, name); !errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
	}
	if _, err := a.Closure(ctx, nil, "kernel=5"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}

	dir, err := a.Unpack(ctx, p, Package{"musl", "1"})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"usr/share/kernel": "6.10-1", "usr/share/kernel.hard": "6.10-1", "kernel.soft": "6.10-1", "musl.soft": "1"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if fi, err := os.Stat(filepath.Join(dir, "usr/share/kernel")); err != nil || fi.Mode() != 0o640 || !fi.ModTime().Equal(time.Unix(1e9, 0)) {
		t.Error(fi, err)
	}
	before := m.fetched
	if again, err := a.Unpack(ctx, p); again != dir || err != nil || m.fetched != before {
		t.Error(again, err, m.fetched-before)
	}
	if left, _ := filepath.Glob(filepath.Join(a.dir(), tmpPrefix+"*")); left != nil {
		t.Error(left)
	}
}

// TestNoUpdates uses an architecture for which only the release has packages.
func TestNoUpdates(t *testing.T) {
	m := newMirror(t)
	m.add("stable-security", "kernel", "6.10-1", "")
	m.add("stable", "kernel", "6.9-1", "")
	m.publish()
	a := m.archive
	a.Arch = "old"
	if p, err := a.Find(t.Context(), "kernel"); p.Version != "6.9-1" || err != nil {
		t.Error(p, err)
	}
	a.Arch = "absent"
	if _, err := a.Find(t.Context(), "kernel"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

func TestSource(t *testing.T) {
	m := newMirror(t)
	var orig bytes.Buffer
	z := gzip.NewWriter(&orig)
	w := tar.NewWriter(z)
	w.WriteHeader(&tar.Header{Name: "tool-2/src/main.c", Typeflag: tar.TypeReg, Mode: 0o644, Size: 4})
	w.Write([]byte("main"))
	w.Close()
	z.Close()
	m.files["/debian/pool/tool_2.orig.tar.gz"] = orig.Bytes()
	for _, version := range []string{"1-1", "2-1"} {
		m.sources += fmt.Sprintf("Package: tool\nVersion: %s\nDirectory: pool\nFiles:\n 00 1 tool_0.orig.tar.gz\nChecksums-Sha256:\n %x %d tool_%s.orig.tar.gz\n 00 1 tool.debian.tar.xz\n\n",
			version, sha256.Sum256(orig.Bytes()), orig.Len(), version[:1])
	}
	m.publish()
	m.archive.Suite = "stable"
	dir := filepath.Join(t.TempDir(), "new")
	if version, err := m.archive.Source(t.Context(), "tool", dir); version != "2-1" || err != nil {
		t.Fatal(version, err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "tool-2/src/main.c")); string(b) != "main" {
		t.Error(b, err)
	}
	if _, err := m.archive.Source(t.Context(), "absent", dir); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

// TestMore unpacks a package that no list of the mirror names any more, and refuses it if the file is another.
func TestMore(t *testing.T) {
	m := newMirror(t)
	m.add("stable-security", "old", "1", "Depends: new")
	m.archive.More, m.lists["stable-security"] = m.lists["stable-security"], ""
	m.add("stable-security", "new", "2", "")
	m.publish()
	list, err := m.archive.Closure(t.Context(), nil, "old=1")
	if want := []Package{{"new", "2"}, {"old", "1"}}; err != nil || !slices.Equal(list, want) {
		t.Fatalf("%v, %v, want %v", list, err, want)
	}
	dir := t.TempDir()
	if err := m.archive.Extract(t.Context(), dir, list); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "usr/share/old")); err != nil || string(text) != "1" {
		t.Errorf("%q, %v", text, err)
	}
	m.files["/debian-security/pool/old_1.deb"] = []byte("forged")
	if err := m.archive.Extract(t.Context(), t.TempDir(), list); err == nil {
		t.Error("another file was unpacked")
	}
}

// TestMirrorChanges checks that the lists are fetched again when the mirror has dropped a
// version, and that old ones serve when there is no mirror.
func TestMirrorChanges(t *testing.T) {
	m := newMirror(t)
	m.add("stable", "tool", "1", "")
	m.publish()
	ctx, a := t.Context(), m.archive
	if _, err := a.Find(ctx, "tool"); err != nil {
		t.Fatal(err)
	}
	delete(m.files, "/debian/pool/tool_1.deb")
	m.lists["stable"] = ""
	m.add("stable", "tool", "2", "")
	m.publish()
	if _, err := a.Unpack(ctx, Package{"tool", "1"}); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if p, err := a.Find(ctx, "tool"); p.Version != "2" || err != nil {
		t.Error(p, err)
	}
	m.files = nil
	var log bytes.Buffer
	a.Log = &log
	old := time.Now().Add(-2 * listsFresh)
	if err := os.Chtimes(a.listFile(), old, old); err != nil {
		t.Fatal(err)
	}
	if p, err := a.Find(ctx, "tool"); p.Version != "2" || err != nil || !strings.Contains(log.String(), "using package lists of ") {
		t.Error(p, err, &log)
	}
}

// TestOldMirror checks that a mirror that is not kept up to date is named in the log.
func TestOldMirror(t *testing.T) {
	m := newMirror(t)
	m.validUntil = "Sat, 01 Jan 2022 00:00:00 UTC"
	m.add("stable", "tool", "1", "")
	m.publish()
	var log bytes.Buffer
	m.archive.Log = &log
	if _, err := m.archive.Find(t.Context(), "tool"); err != nil || !strings.Contains(log.String(), "the mirror is old") {
		t.Error(err, &log)
	}
}

// TestForgeries checks that nothing is taken from a mirror that cannot be trusted.
func TestForgeries(t *testing.T) {
	for name, forge := range map[string]func(m *mirror){
		"signature":      func(m *mirror) { m.archive.Keys = newMirror(t).archive.Keys },
		"no signed text": func(m *mirror) { m.files["/debian/dists/stable/InRelease"] = []byte("Suite: stable\n") },
		"is of another suite": func(m *mirror) {
			m.files["/debian/dists/stable/InRelease"] = m.files["/debian-security/dists/stable-security/InRelease"]
		},
		"lists no main/binary":  func(m *mirror) { m.sign("/debian/dists/stable/InRelease", "Suite: stable\n") },
		"SHA-256":               func(m *mirror) { m.files["/debian/pool/tool_1.deb"][70] ^= 1 },
		"path escapes":          func(m *mirror) { m.escape("../outside", tar.TypeReg, "") },
		"path escapes from par": func(m *mirror) { m.escape("link/outside", tar.TypeReg, "..") },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMirror(t)
			m.add("stable", "tool", "1", "")
			m.publish()
			forge(m)
			_, err := m.archive.Unpack(t.Context(), Package{"tool", "1"})
			if err == nil || !strings.Contains(err.Error(), strings.TrimSuffix(name, " from par")) {
				t.Error(err)
			}
			if found, _ := filepath.Glob(filepath.Join(m.archive.Dir, "debian/*/outside")); found != nil {
				t.Error(found)
			}
		})
	}
}

// TestEndlessFiles checks that a mirror cannot send more than the signed lists state.
func TestEndlessFiles(t *testing.T) {
	m := newMirror(t)
	m.add("stable", "tool", "1", "")
	orig := m.files["/debian/pool/tool_1.deb"]
	m.files["/debian/pool/tool_1.orig.tar.gz"] = orig
	m.sources = fmt.Sprintf("Package: tool\nVersion: 1\nDirectory: pool\nChecksums-Sha256:\n %x %d tool_1.orig.tar.gz\n\n", sha256.Sum256(orig), len(orig))
	m.publish()
	m.archive.Suite = "stable"
	listSum := func(name string) string {
		t.Helper()
		release, err := m.archive.release(t.Context(), m.archive.Mirror+"/dists/stable/InRelease")
		if err != nil {
			t.Fatal(err)
		}
		sum, _, err := checksum(release, "stable", name)
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	unpack := func() error {
		_, err := m.archive.Unpack(t.Context(), Package{"tool", "1"})
		return err
	}
	source := func() error {
		_, err := m.archive.Source(t.Context(), "tool", t.TempDir())
		return err
	}
	packages, sources := listSum("main/binary-amd64/Packages.gz"), listSum("main/source/Sources.gz")
	for _, test := range []struct {
		file string
		do   func() error
	}{{"InRelease", unpack}, {packages, unpack}, {"tool_1.deb", unpack}, {sources, source}, {"tool_1.orig.tar.gz", source}} {
		m.endless = test.file
		if err := test.do(); err == nil || !strings.Contains(err.Error(), test.file+": more than ") {
			t.Errorf("%s: %v", test.file, err)
		}
	}
}

// escape replaces the package by one with a file outside of it, through a link if that is not
// empty.
func (m *mirror) escape(name string, typ byte, link string) {
	headers := []tar.Header{{Name: name, Typeflag: typ, Mode: 0o644}}
	if link != "" {
		headers = append([]tar.Header{{Name: "link", Typeflag: tar.TypeSymlink, Linkname: link}}, headers...)
	}
	deb := buildDeb(m.t, headers, "x")
	m.files["/debian/pool/evil.deb"] = deb
	m.lists["stable"] = fmt.Sprintf("Package: tool\nVersion: 1\nFilename: pool/evil.deb\nSize: %d\nSHA256: %x\n\n", len(deb), sha256.Sum256(deb))
	m.publish()
}

func TestCompareVersions(t *testing.T) {
	ordered := []string{"0.9~rc1", "0.9", "0.9-1", "0.9a", "0.9+b", "0.10", "1.0~~", "1.0~~a", "1.0~", "1.0", "1.0-1~bpo12+1", "1.0-1", "1.0-1+b1", "1.0-2", "1.0-10", "1:0.1"}
	for i, a := range ordered {
		for j, b := range ordered {
			if newer(a, b) != (i > j) {
				t.Errorf("%s is newer than %s: %v", a, b, i <= j)
			}
		}
	}
	if newer("1.0", "0:1.00") || newer("0:1.00", "1.0") {
		t.Error("1.0 and 0:1.00 differ")
	}
}
