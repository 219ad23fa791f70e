package record

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Origin describes where and when a line was measured.
type Origin struct {
	Kernel  string `json:"kernel"`  // release of the kernel
	Machine string `json:"machine"` // model name of its processors
	CPUs    int    `json:"cpus"`
	Clock   string `json:"clock,omitempty"` // LAB_ACCEL: dilated, icount, or others with the machine's clock
	Date    string `json:"date"`            // of the day, UTC
}

// entry is a line with its origin, as appended.
type entry struct {
	Origin
	Line
}

// Append appends a line to a file in dir, which all processes may share. It returns an error
// if the figures are not pairs.
func Append(dir string, l Line) error {
	if err := l.check(); err != nil {
		return err
	}
	o, err := here()
	if err != nil {
		return err
	}
	text, err := json.Marshal(entry{o, l})
	if err != nil {
		return fmt.Errorf("%s: %w", l.Name, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, linesFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

const linesFile = "lines.json"

// here returns the origin for this machine.
func here() (Origin, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Origin{}, err
	}
	model, err := Processor()
	return Origin{
		Kernel:  unix.ByteSliceToString(u.Release[:]),
		Machine: model,
		CPUs:    runtime.NumCPU(),
		Clock:   os.Getenv("LAB_ACCEL"),
		Date:    time.Now().UTC().Format(time.DateOnly),
	}, err
}

// Processor returns the model name of the processors.
func Processor() (string, error) {
	text, err := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, model, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(model), nil
		}
	}
	return "unknown", err
}
