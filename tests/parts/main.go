package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/lab/debian"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("parts: ")
	if filepath.Base(os.Args[0]) == "go" {
		code, err := command(os.Args[1:])
		if err != nil {
			log.Print(err)
		}
		os.Exit(code)
	}
	names := os.Args[1:]
	switch {
	case slices.Equal(names, []string{"-list"}):
		for _, p := range parts {
			fmt.Println(p.name)
		}
		return
	case slices.Equal(names, []string{"-page"}):
		if err := record(); err != nil {
			log.Fatal(err)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var failed []string
	for _, name := range names {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			log.Fatalf("there is no part %s: parts -list names them", name)
		}
	}
	for _, p := range parts {
		if len(names) > 0 && !slices.Contains(names, p.name) {
			continue
		}
		r, err := p.run(ctx)
		if ctx.Err() != nil {
			log.Fatalf("%s: interrupted", p.name)
		}
		if err == nil {
			err = record(r)
		}
		if err != nil {
			log.Fatalf("%s: %v", p.name, err)
		}
		log.Print(r)
		if !r.ok() {
			failed = append(failed, p.name)
		}
	}
	if len(failed) > 0 {
		log.Fatalf("failed: %s; repeat one with make test-all PART=%s", strings.Join(failed, " "), failed[0])
	}
}

// run runs the part, and returns its row.
func (p part) run(ctx context.Context) (r row, err error) {
	dir, err := os.MkdirTemp("", "parts-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	real, err := exec.LookPath("go")
	if err != nil {
		return r, err
	}
	counts := filepath.Join(dir, "counts")
	if err := errors.Join(os.Symlink(self, filepath.Join(dir, "go")), os.WriteFile(counts, nil, 0o600)); err != nil {
		return r, err
	}
	path := os.Getenv("PATH")
	env := append(os.Environ(), goVariable+"="+real, countVariable+"="+counts, pathVariable+"="+path, "PATH="+dir+":"+path)
	begin, before := time.Now(), load()
	r = row{Part: p.name, Commit: commit(), Machine: machine(), Date: begin.UTC().Format("2006-01-02 15:04")}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for _, m := range p.makes {
		if ctx.Err() != nil {
			break
		}
		cmd := exec.CommandContext(ctx, "make", strings.Fields(m)...)
		cmd.Env, cmd.Stdout, cmd.Stderr = env, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // make has children
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		cmd.WaitDelay = time.Minute
		if err := cmd.Run(); err != nil {
			r.Errors = append(r.Errors, fmt.Sprintf("make %s: %v", m, err))
		}
	}
	if ctx.Err() != nil {
		r.Errors = append(r.Errors, fmt.Sprintf("not finished after %v", limit))
	}
	r.Minutes = float64(time.Since(begin).Round(6*time.Second)) / float64(time.Minute)
	r.Load = before + " to " + load()
	r.count, err = readCounts(counts)
	return r, err
}

func output(name string, args ...string) string {
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		log.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out))
}

// commit returns the commit that is checked out, with + if files differ from it.
func commit() string {
	c := output("git", "rev-parse", "--short=10", "HEAD")
	if output("git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":!"+rowsFile, ":!"+pageFile) != "" {
		c += "+"
	}
	return c
}

// machine describes this machine.
func machine() string {
	m := fmt.Sprintf("%d × %s", runtime.NumCPU(), runtime.GOARCH)
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		for s := bufio.NewScanner(f); s.Scan(); {
			if name, ok := strings.CutPrefix(s.Text(), "model name\t: "); ok {
				m = fmt.Sprintf("%d × %s", runtime.NumCPU(), name)
				break
			}
		}
		f.Close()
	}
	// Where a machine is nested, /dev/kvm may exist and not work, as the lab has found for each of its kernels.
	found, _ := filepath.Glob(filepath.Join(debian.CacheDir(), "debian/*/*/kvm-"+sys.KernelRelease()))
	for _, file := range found {
		if accel, _ := os.ReadFile(file); string(accel) == "kvm" {
			return m + ", KVM"
		}
	}
	return m + ", no KVM"
}

// load returns the load of the last minute.
func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	return first
}
