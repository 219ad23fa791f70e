package mmap

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/goverbs/verbs/internal/labtest/tool"
)

// TestBarriers calls the barriers. Only a device could show what they order.
func TestBarriers(t *testing.T) {
	v, v32, to, from := new(uint64), new([2]uint32), new([64]byte), new([64]byte)
	record, copied, stored := new(atomic.Uint32), new([64]byte), new(uint64)
	record64, stored64 := new(atomic.Uint64), new(uint64)
	for i := range from {
		from[i] = byte(i)
	}
	if n := testing.AllocsPerRun(100, func() {
		BarrierToDevice()
		StoreDevice(v, 0x0123456789abcdef)
		StoreDevice32(&v32[0], 0x89abcdef)
		CopyDevice(to, from)
		FlushDevice()
		BarrierFromDevice()
		CopyDoorbell(record, 3, copied, from)
		StoreDoorbell(record, 4, stored, 5)
		StoreDoorbell64(record64, stored64, 6<<32)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if *copied != *from || *stored != 5 || record.Load() != 4 {
		t.Errorf("doorbells: copied %x, stored %d, record %d", *copied, *stored, record.Load())
	}
	if record64.Load() != 6<<32 || *stored64 != 6<<32 {
		t.Errorf("doorbell of 64 bits: stored %#x, record %#x", *stored64, record64.Load())
	}
	if *v != 0x0123456789abcdef || *v32 != [2]uint32{0x89abcdef, 0} {
		t.Errorf("stored %#x and %#x", *v, *v32)
	}
	if *to != *from {
		t.Errorf("copied %x", *to)
	}
	data, other, ready := uint32(0), uint32(5), atomic.Uint32{}
	if got := publish(&data, &other, &ready); got != 5 || data != 7 || ready.Load() != 1 {
		t.Errorf("published %d, %d, %d", got, data, ready.Load())
	}
}

// publish must load, store and store with release in this order.
//
//go:noinline
func publish(data, other *uint32, ready *atomic.Uint32) uint32 {
	v := *other
	*data = 7
	StoreRelease(ready, 1)
	return v
}

// TestBarrierInstructions disassembles the barriers: their machine code is that of
// rdma-core's udma_barrier.h.
func TestBarrierInstructions(t *testing.T) {
	goTool := tool.Path(t, "go")
	for arch, functions := range map[string]map[string]string{
		"amd64": {"flushDevice": "0faef8 c3", "storeDevice": "488b442408 488b4c2410 488908 c3", "storeDevice32": "488b442408 8b4c2410 8908 c3", "copyDevice": "488b442408 488b4c2410 f30f6f01 f30f6f4910 f30f6f5120 f30f6f5930 f30f7f00 f30f7f4810 f30f7f5020 f30f7f5830 c3",
			"copyDoorbell":    "488b442408 8b4c2410 488b542418 488b5c2420 8908 0faef8 4c8b03 4c8b4b08 4c8b5310 4c8b5b18 4c8b6320 4c8b6b28 488b7330 488b7b38 4c8902 4c894a08 4c895210 4c895a18 4c896220 4c896a28 48897230 48897a38 0faef8 c3",
			"storeDoorbell":   "488b442408 8b4c2410 488b542418 488b5c2420 8908 0faef8 48891a 0faef8 c3",
			"storeDoorbell64": "488b442408 488b542410 488b4c2418 488908 48890a c3",
			"publish":         "8b13 c70007000000 c70101000000 89d0 c3"},
		"arm64": {"barrierToDevice": "d50332bf d65f03c0", "barrierFromDevice": "d50331bf d65f03c0", "flushDevice": "d5033e9f d65f03c0", "storeDevice": "f94007e0 f9400be1 f9000001 d65f03c0", "storeDevice32": "f94007e0 b94013e1 b9000001 d65f03c0",
			"storeDoorbell64": "f94007e0 f9400be1 f9400fe2 d50332bf f9000002 d50332bf f9000022 d65f03c0",
			"copyDevice":      "f94007e0 f9400be1 a9400c22 a9411424 a9421c26 a9432428 a9000c02 a9011404 a9021c06 a9032408 d65f03c0"},
	} {
		t.Run(arch, func(t *testing.T) {
			code := disassemble(t, goTool, arch)
			for name, want := range functions {
				if name == "publish" && arch != runtime.GOARCH {
					continue // it would take the standard library of that architecture
				}
				if got := strings.Join(code[name], " "); !strings.HasPrefix(got, want) {
					t.Errorf("%s is %q, want %q", name, got, want)
				}
			}
		})
	}
}

// disassemble returns the instructions of the functions in assembly, and of publish if the architecture is this one's.
// Assembling a file takes no other package; and the test binary's packages are compiled already.
func disassemble(t *testing.T, goTool, arch string) map[string][]string {
	t.Helper()
	run := func(args ...string) string {
		cmd := exec.Command(goTool, args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	file := filepath.Join(t.TempDir(), "mmap.o")
	run("tool", "asm", "-I", filepath.Join(strings.TrimSpace(run("env", "GOROOT")), "pkg", "include"), "-p", "mmap", "-o", file, "barrier_"+arch+".s")
	out := run("tool", "objdump", file)
	if arch == runtime.GOARCH {
		binary := filepath.Join(t.TempDir(), "mmap.test")
		run("test", "-c", "-o", binary, ".")
		out += run("tool", "objdump", "-s", `/mmap\.publish$`, binary)
	}
	code, name := map[string][]string{}, ""
	for line := range strings.Lines(out) { // "TEXT mmap.flushDevice(SB) ...", "  file.s:5	0x4c	0faee8	LFENCE"
		f := strings.Fields(line)
		switch {
		case len(f) > 1 && f[0] == "TEXT":
			name = strings.TrimSuffix(f[1][strings.LastIndex(f[1], ".")+1:], "(SB)")
		case len(f) > 3 && f[3] != "NOPL":
			code[name] = append(code[name], f[2])
		}
	}
	return code
}
