package debian

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"pault.ag/go/debian/control"
)

// listsFresh is how long fetched package lists are used.
const listsFresh = 6 * time.Hour

// debianKeys is the file of Debian's package debian-archive-keyring.
//
//go:embed keyring.gpg
var debianKeys []byte

// suites returns the archive's suite, and the release that it extends, if any.
func (a Archive) suites() []string {
	release, _, partial := strings.Cut(a.Suite, "-")
	if !partial {
		return []string{a.Suite}
	}
	return []string{a.Suite, release}
}

// mirror returns the address of the archive that has a suite.
func (a Archive) mirror(suite string) string {
	m := cmp.Or(a.Mirror, os.Getenv("VERBS_DEBIAN_MIRROR"), "http://deb.debian.org/debian")
	if strings.HasSuffix(suite, "-security") {
		m += "-security"
	}
	return m
}

// lists loads the package lists. It fetches them first if they are missing or old, but uses old ones if
// that fails.
func (a Archive) lists(ctx context.Context) (ix *index, fetched bool, err error) {
	fi, err := os.Stat(a.listFile())
	if err == nil && time.Since(fi.ModTime()) < listsFresh {
		ix, err = a.load()
		return ix, false, err
	}
	old := err == nil
	if err = a.update(ctx); err != nil {
		if !old || ctx.Err() != nil {
			return nil, false, err
		}
		a.logf("%v; using package lists of %s", err, fi.ModTime().Format(time.DateTime))
	}
	ix, err = a.load()
	return ix, true, err
}

// listFile returns the file with the package lists: a line for each package, see record.
func (a Archive) listFile() string { return filepath.Join(a.dir(), "packages.gz") }

// update fetches the package lists and stores them in the form of load.
func (a Archive) update(ctx context.Context) (err error) {
	a.logf("fetching package lists of %s", a.Suite)
	f, err := os.CreateTemp(a.dir(), tmpPrefix)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	w := gzip.NewWriter(f)
	suites := a.suites()
	for i, suite := range suites {
		err := a.fetchList(ctx, i, suite, w)
		if errors.Is(err, errNoList) && i+1 < len(suites) {
			a.logf("%s has nothing for %s", suite, a.arch())
			continue
		}
		if err != nil {
			return fmt.Errorf("package lists of %s: %w", suite, err)
		}
	}
	if err := errors.Join(w.Close(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), a.listFile())
}

// fetchList appends the records of a suite to w.
func (a Archive) fetchList(ctx context.Context, rank int, suite string, w io.Writer) error {
	return a.signedList(ctx, suite, "main/binary-"+a.arch()+"/Packages", func(r io.Reader) error {
		return compact(r, rank, a.mirror(suite), w)
	})
}

// signedList fetches a list of a suite, checks it by the suite's signed release file, and calls use with
// its contents.
func (a Archive) signedList(ctx context.Context, suite, name string, use func(io.Reader) error) error {
	base := a.mirror(suite) + "/dists/" + suite + "/"
	release, err := a.release(ctx, base+"InRelease")
	if err != nil {
		return err
	}
	value := release["Valid-Until"]
	if until, err := time.Parse(time.RFC1123, value); err == nil && time.Now().After(until) {
		a.logf("%s: package lists were to be replaced by %s: the mirror is old", suite, value)
	}
	ext := ".xz" // some suites have no other
	sum, size, err := checksum(release, suite, name+ext)
	if errors.Is(err, ErrNotFound) {
		ext = ".gz"
		sum, size, err = checksum(release, suite, name+ext)
	}
	if err != nil {
		return err
	}
	var list bytes.Buffer
	if err := a.fetch(ctx, base+path.Dir(name)+"/by-hash/SHA256/"+sum, sum, size, &list); err != nil {
		return err
	}
	return Decompress(ctx, ext, &list, use)
}

// maxRelease bounds a release file, whose size nothing states. It is apt's bound (Acquire::MaxReleaseFileSize);
// Debian's largest have some hundred KiB.
const maxRelease = 10_000_000

// release fetches the release file of a suite, verifies its signature and returns its fields.
func (a Archive) release(ctx context.Context, url string) (map[string]string, error) {
	keys := a.Keys
	if keys == nil {
		keys = debianKeys
	}
	ring, err := openpgp.ReadKeyRing(bytes.NewReader(keys))
	if err != nil {
		return nil, err
	}
	var signed bytes.Buffer
	if err := a.fetch(ctx, url, "", maxRelease, &signed); err != nil {
		return nil, err
	}
	r, err := control.NewParagraphReader(&signed, &ring)
	if err != nil {
		return nil, fmt.Errorf("signature: %w", err)
	}
	if r.Signer() == nil { // the reader accepts text without a signature
		return nil, errors.New("no signed text")
	}
	p, err := r.Next()
	if err != nil {
		return nil, err
	}
	return p.Values, nil
}

// checksum returns the SHA-256 and the size of a file that the release file of a suite lists.
func checksum(release map[string]string, suite, name string) (sum string, size int64, err error) {
	if release["Suite"] != suite && release["Codename"] != suite {
		return "", 0, errOtherSuite
	}
	for line := range strings.Lines(release["SHA256"]) {
		if f := strings.Fields(line); len(f) == 3 && f[2] == name {
			if size, err = strconv.ParseInt(f[1], 10, 64); err != nil {
				return "", 0, fmt.Errorf("size of %s: %w", name, err)
			}
			return f[0], size, nil
		}
	}
	return "", 0, fmt.Errorf("release file lists no %s: %w", name, errNoList)
}

var (
	errOtherSuite = errors.New("release file is of another suite")
	errNoList     = fmt.Errorf("%w", ErrNotFound) // a list, not a package
)

// fetch copies a file of the mirror to w, and checks its SHA-256 unless sum is empty. Anyone on the path can
// answer plain HTTP, and the sum is known only at the end: most bounds what the answer takes of memory or disk.
func (a Archive) fetch(ctx context.Context, url, sum string, most int64, w io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		return fmt.Errorf("%s: %w", url, ErrNotFound)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(w, h), io.LimitReader(resp.Body, most+1))
	if err != nil {
		return fmt.Errorf("%s: %w", url, err)
	}
	if n > most {
		return fmt.Errorf("%s: more than %d bytes", url, most)
	}
	if got := hex.EncodeToString(h.Sum(nil)); sum != "" && got != sum {
		return fmt.Errorf("%s: SHA-256 is %s, not %s", url, got, sum)
	}
	return nil
}

// record describes a version of a package. The fields are in the order of a line in the list
// file, where tabs separate them.
type record struct {
	rank                             int // of its suite: 0 is preferred
	name, version, depends, provides string
	mirror, file, sha256             string
	size                             int64
}

// paragraphs calls use with the fields of each paragraph of a list in Debian's format.
func paragraphs(list io.Reader, use func(fields map[string]string) error) error {
	r, err := control.NewParagraphReader(list, nil)
	if err != nil {
		return err
	}
	for {
		p, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = use(p.Values)
		}
		if err != nil {
			return err
		}
	}
}

// compact writes the fields of record from a list in Debian's format.
func compact(r io.Reader, rank int, mirror string, w io.Writer) error {
	return paragraphs(r, func(fields map[string]string) error {
		depends := strings.Trim(fields["Pre-Depends"]+", "+fields["Depends"], ", ")
		_, err := fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", rank, fields["Package"], fields["Version"], depends, fields["Provides"],
			mirror, fields["Filename"], fields["SHA256"], fields["Size"])
		return err
	})
}

// load reads the list file, and adds a.More.
func (a Archive) load() (*index, error) {
	f, err := os.Open(a.listFile())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	var more bytes.Buffer
	if err := compact(strings.NewReader(a.More), 0, a.mirror(a.Suite), &more); err != nil {
		return nil, err
	}
	ix := &index{packages: map[string][]record{}, providers: map[string][]string{}}
	s := bufio.NewScanner(io.MultiReader(r, &more))
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		v := strings.Split(s.Text(), "\t")
		if len(v) != 9 {
			return nil, fmt.Errorf("%s: line %q", f.Name(), s.Text())
		}
		rank, _ := strconv.Atoi(v[0])
		size, _ := strconv.ParseInt(v[8], 10, 64)
		ix.add(record{rank, v[1], v[2], v[3], v[4], v[5], v[6], v[7], size})
	}
	return ix, s.Err()
}
