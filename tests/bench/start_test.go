package bench

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestStart measures how soon programs list the devices and receive a byte back from a
// server, and how large they are.
func TestStart(t *testing.T) {
	labtest.Require(t)
	ours := side{strip(t, labtest.Built(t, "first")), "7497", nil}
	c := side{strip(t, labtest.Built(t, "c/first")), "7498", nil}
	listed := map[string]string{}
	o, b := both(ours, c, func(s side) result {
		text, took := s.firstLine(t)
		listed[s.program] = text
		return result{"took": {float64(took)}}
	})
	if listed[ours.program] != listed[c.program] {
		t.Errorf("our devices are %q, C's %q", listed[ours.program], listed[c.program])
	}
	comparison{group: "start", name: "first device listed", unit: "ms", better: lower, ours: times(o.medians(), 1e-3), c: times(b.medians(), 1e-3)}.report(t)

	inMiB := func(files ...string) sample {
		return slices.Repeat(sample{float64(sizeOf(t, files...)) / (1 << 20)}, max(*reps, 1))
	}
	comparison{
		group: "size", name: "program with its shared libraries", unit: "MiB", better: lower,
		ours: inMiB(ours.program), c: inMiB(append(libraries(t, c.program), c.program)...),
	}.report(t)

	labtest.Each(t, func(t *testing.T, device string) {
		open := func(s side) func() result { return func() result { return s.once(t, device) } }
		rs := pairs(*reps, 0, open(ours), open(c))
		comparison{
			group: "size", device: device, name: "resident, with the device open", unit: "MiB", better: lower,
			ours: times(rs[0].figure("kilobytes"), 1.0/1024), c: times(rs[1].figure("kilobytes"), 1.0/1024),
		}.report(t)

		addr := labtest.AddrOf(device)
		ours.serve(t, addr)
		c.serve(t, addr)
		o, b := both(ours, c, func(s side) result {
			start := time.Now()
			r := s.once(t, addr, s.port)
			took := time.Since(start)
			if r.first("byte") != '!' {
				t.Fatalf("%s got %v back", s.program, r.first("byte"))
			}
			return result{"took": {float64(took)}}
		})
		comparison{
			group: "first byte", device: device, name: "process that has a byte sent and back", unit: "ms", better: lower,
			ours: times(o.medians(), 1e-3), c: times(b.medians(), 1e-3),
		}.report(t)
	})
}

// firstLine runs the program and returns its output, and the time until its first line.
func (s side) firstLine(t *testing.T) (text string, took time.Duration) {
	t.Helper()
	cmd := s.command()
	cmd.Stderr = os.Stderr
	stdout := labtest.Must(cmd.StdoutPipe())(t)
	start := time.Now()
	labtest.Check(t, cmd.Start())
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if text == "" {
			took = time.Since(start)
		}
		text += lines.Text() + "\n"
	}
	if err := cmd.Wait(); err != nil || text == "" {
		t.Fatalf("%s says %q: %v", s.program, text, err)
	}
	return text, took
}

// strip copies a program without its symbols.
func strip(t *testing.T, program string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), filepath.Base(program))
	if out, err := exec.Command("strip", "-o", to, program).CombinedOutput(); err != nil {
		t.Fatalf("strip: %v\n%s", err, out)
	}
	return to
}

// libraries returns the libraries to which a C program is linked, and those that libibverbs
// loads for the lab's drivers.
func libraries(t *testing.T, program string) []string {
	t.Helper()
	out, err := exec.Command("ldd", program).Output()
	if err != nil {
		t.Fatalf("ldd: %v", err)
	}
	var files []string
	for _, m := range regexp.MustCompile(`(?m)(/\S+) \(`).FindAllStringSubmatch(string(out), -1) {
		files = append(files, m[1])
	}
	for _, driver := range []string{"rxe", "siw"} {
		found, _ := filepath.Glob(fmt.Sprintf("/usr/lib/*/libibverbs/lib%s-rdmav*.so", driver))
		if len(found) != 1 {
			t.Fatalf("libraries of the driver %s are %v", driver, found)
		}
		files = append(files, found...)
	}
	return files
}

func sizeOf(t *testing.T, files ...string) (n int64) {
	t.Helper()
	for _, f := range files {
		info := labtest.Must(os.Stat(f))(t)
		n += info.Size()
	}
	return n
}
