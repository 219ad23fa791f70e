package nic

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// pyverbsQuick are the modules that are run with -short.
var pyverbsQuick = []string{"test_mlx5_dc.py", "test_odp.py", "test_pd.py", "test_qp.py"}

// unpackPyverbs unpacks the tests of rdma-core, of which Debian compresses some, and returns the
// folder of their package.
func unpackPyverbs(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	const source = "/usr/share/doc/rdma-core/tests"
	files := labtest.Must(filepath.Glob(source + "/*.py*"))(t)
	if len(files) == 0 {
		t.Fatalf("%s has no tests (Debian's python3-pyverbs: run the lab with --userland)", source)
	}
	labtest.Check(t, os.Mkdir(folder+"/tests", 0o755))
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".gz")
		if testing.Short() && strings.HasPrefix(name, "test_") && !slices.Contains(pyverbsQuick, name) {
			continue
		}
		labtest.Check(t, unpack(filepath.Join(folder, "tests", name), f))
	}
	return folder
}

func unpack(to, from string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	r := io.Reader(f)
	if strings.HasSuffix(from, ".gz") {
		if r, err = gzip.NewReader(f); err != nil {
			return err
		}
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}

// pyverbsResult is a line that testdata/runtests.py writes.
type pyverbsResult struct {
	Test    string
	Result  string // run, and then ok, skip or fail
	Reason  string
	Seconds float64
}

// runPyverbs runs rdma-core's tests and returns their results. One that ends Python fails.
func runPyverbs(t *testing.T, a adapter) []pyverbsResult {
	t.Helper()
	// Of the tests that prefetch pages without faults, beside requests: one task looks at a page that is
	// not there, the other maps it, and the first one, which waits for the lock, wonders at the mapping. The
	// notifier counts only pages that go.
	labtest.ExpectWarning(t, "ib_umem_odp_map_dma_and_lock")
	folder, file := unpackPyverbs(t), filepath.Join(t.TempDir(), "results")
	for {
		// Not another Python that PATH may have.
		out, err := exec.CommandContext(t.Context(), "/usr/bin/python3", "testdata/runtests.py", folder, device, strconv.Itoa(a.gid), file, "testdata/excluded.txt").CombinedOutput()
		results := readResults(t, file)
		if _, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || len(results) == 0 || results[len(results)-1].Result != "run") {
			t.Fatalf("%v\n%s", err, out)
		}
		if err == nil {
			return slices.DeleteFunc(results, func(r pyverbsResult) bool { return r.Result == "run" })
		}
		last := pyverbsResult{Test: results[len(results)-1].Test, Result: "fail", Reason: "Python ended: " + err.Error() + "\n" + string(out)}
		f := labtest.Must(os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0))(t)
		labtest.Check(t, json.NewEncoder(f).Encode(last), f.Close())
	}
}

func readResults(t *testing.T, file string) (results []pyverbsResult) {
	t.Helper()
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	labtest.Check(t, err)
	defer f.Close()
	for d := json.NewDecoder(f); ; {
		var r pyverbsResult
		if err := d.Decode(&r); err == io.EOF {
			return results
		} else if err != nil {
			t.Fatal(err)
		}
		results = append(results, r)
	}
}

// TestPyverbs runs rdma-core's own tests but for those of testdata/excluded.txt, a subtest for each
// module and in it one for each test. Those that need more than the adapter has skip themselves.
func TestPyverbs(t *testing.T) {
	a := newAdapter(t)
	a.needTypes(t)
	results := runPyverbs(t, a)
	newLines(t) // the drivers complain of what tests do wrong on purpose
	for len(results) > 0 {
		module := moduleOf(results[0])
		n := slices.IndexFunc(results, func(r pyverbsResult) bool { return moduleOf(r) != module })
		if n < 0 {
			n = len(results)
		}
		t.Run(module, func(t *testing.T) {
			for _, r := range results[:n] {
				t.Run(strings.TrimPrefix(r.Test, "tests."+module+"."), func(t *testing.T) { r.check(t) })
			}
		})
		results = results[n:]
	}
}

// moduleOf returns test_qp of tests.test_qp.QPTest.test_create_rc_qp.
func moduleOf(r pyverbsResult) string { return strings.Split(r.Test, ".")[1] }

func (r pyverbsResult) check(t *testing.T) {
	t.Logf("%.1f s", r.Seconds)
	switch r.Result {
	case "skip":
		t.Skip(r.Reason)
	case "fail":
		t.Error(r.Reason)
	}
}
