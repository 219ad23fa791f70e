//go:build linux

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/lab/debian"
	"github.com/goverbs/verbs/lab/internal/image"
	"github.com/goverbs/verbs/lab/internal/machine"
)

// TestState saves a machine, restores it, and boots another when its state is damaged.
func TestState(t *testing.T) {
	for _, nic := range []string{"", "connectx"} {
		t.Run(nic, func(t *testing.T) { testState(t, nic) })
	}
}

func testState(t *testing.T, nic string) {
	first, _, _ := lab(t, "sh", "-c", "dmesg | head -n 200 | md5sum; cat /proc/sys/kernel/random/uuid; date +%s")
	k, err := image.Cached(image.Kernels[0].Name, image.ArchByName(runtime.GOARCH))
	if err != nil {
		t.Fatal(err)
	}
	opt := machine.Options{Mem: 520, CPUs: 2}
	if opt.NICs, err = machine.ParseAdapters(nic); err != nil {
		t.Fatal(err)
	}
	find := func() []string {
		files, err := filepath.Glob(filepath.Join(debian.CacheDir(), machine.StatePrefix(k, opt)+"*"))
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	clear := func() {
		for _, f := range find() {
			os.Remove(f)
		}
	}
	clear()
	t.Cleanup(clear)
	run := func() (boot, random, complaints string) {
		t.Helper()
		var stdout, stderr bytes.Buffer
		cmd := exec.CommandContext(t.Context(), first.Path, first.Args[1:]...)
		cmd.Env = append(first.Env, "LAB_ACCEL=tcg", "LAB_MEM="+strconv.Itoa(opt.Mem), "LAB_NIC="+nic)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		start := time.Now()
		if code := status(t, cmd.Run()); code != 0 {
			t.Fatalf("exit status %d: %s", code, &stderr)
		}
		out := strings.Split(stdout.String(), "\n")
		if len(out) != 4 {
			t.Fatalf("stdout %q", &stdout)
		}
		const slack = 2
		if now, err := strconv.ParseInt(out[2], 10, 64); err != nil || now < start.Unix()-slack || now > time.Now().Unix()+slack {
			t.Errorf("the guest's clock showed %s, this machine's %d to %d", out[2], start.Unix(), time.Now().Unix())
		}
		if s := find(); len(s) != 1 || strings.HasSuffix(s[0], "new") {
			t.Fatalf("states %q", s)
		}
		return out[0], out[1], stderr.String()
	}
	saved, random1, complaints := run()
	if complaints != "" {
		t.Error(complaints)
	}
	restored, random2, complaints := run()
	if restored != saved || complaints != "" {
		t.Errorf("the machine was not restored: %s", complaints)
	}
	again, random3, _ := run()
	if again != saved || random1 == random2 || random2 == random3 {
		t.Errorf("random numbers %s, %s and %s", random1, random2, random3)
	}
	if err := os.Truncate(find()[0], 100_000); err != nil {
		t.Fatal(err)
	}
	booted, _, complaints := run()
	if booted == saved || !strings.Contains(complaints, "trying again") {
		t.Errorf("a damaged state was restored: %s", complaints)
	}
}
