//go:build linux

package machine

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goverbs/verbs/lab/internal/image"
	"github.com/goverbs/verbs/lab/internal/job"
)

// Task is a job, with the settings that the guest does not need.
type Task struct {
	job.Job
	Begun time.Time     // if set, a test's time counts from here
	Limit time.Duration // of the program; 0 is none
}

// NewTask returns the task that runs a program in a folder. write is the folder of --write, if any.
func NewTask(k image.Kernel, opt Options, write string, args, env []string, dir string) (Task, error) {
	path, err := exec.LookPath(args[0])
	if err != nil {
		return Task{}, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return Task{}, err
	}
	j := job.Job{
		Setup:    job.Setup{Release: k.Release, Modules: k.Modules, Userland: opt.Userland != ""},
		Args:     append([]string{path}, args[1:]...),
		Env:      append(slices.Clip(env), "VERBS_LAB="+k.Release),
		Dir:      dir,
		Keep:     keptPaths(args, env, dir),
		Dilated:  opt.Accel == Dilated,
		Adapters: machineAdapters(opt.NICs, 1),
		UDP:      opt.UDP,
	}
	if len(opt.NICs) > 0 {
		j.Env = append(j.Env, "VERBS_NIC="+strings.Join(opt.NICs, ","))
	}
	if write != "" {
		if j.Write, err = filepath.Abs(write); err != nil {
			return Task{}, err
		}
		if real, err := filepath.EvalSymlinks(j.Write); err == nil { // the guest's root follows absolute links to its own folders
			j.Write = real
		}
	}
	if err := checkShared(path, j.Write); err != nil {
		return Task{}, fmt.Errorf("program %s: %w", path, err)
	}
	if err := checkShared(dir, j.Write); err != nil {
		return Task{}, fmt.Errorf("working directory %s: %w", dir, err)
	}
	for _, p := range j.Keep {
		if err := checkShared(p, j.Write); err != nil {
			return Task{}, fmt.Errorf("output file %s: %w", p, err)
		}
	}
	return Task{Job: j}, nil
}

// checkShared returns an error if path is in one of the guest's own folders, unless --write shares it. The
// guest could only report that the program does not exist, and would lose a profile without an error.
func checkShared(path, write string) error {
	names := []string{path}
	if real, err := filepath.EvalSymlinks(path); err == nil { // the guest follows links in its own folders
		names = append(names, real)
	}
	within := func(name, dir string) bool { return strings.HasPrefix(name, dir+"/") }
	for _, name := range names {
		for _, own := range job.OwnFolders {
			if within(name, own) && (write == "" || name != write && !within(name, write)) {
				return fmt.Errorf("the guest has an empty %s of its own: use another folder (go test: set GOTMPDIR), or share it with --write", own)
			}
		}
	}
	return nil
}

// onMachine returns the task for one of two machines, whose peer runs the kernel other.
func (t Task) onMachine(number int, k, other image.Kernel, nics []string) Task {
	t.Env = append(slices.DeleteFunc(slices.Clone(t.Env), func(s string) bool { return strings.HasPrefix(s, "VERBS_LAB=") }),
		"VERBS_LAB="+k.Release, fmt.Sprintf("VERBS_HOST=%d", number), "VERBS_PEER="+other.Release)
	t.Number, t.Release, t.Modules, t.Adapters = number, k.Release, k.Modules, machineAdapters(nics, number)
	return t
}

// patience is how long a program may take to end after a signal.
func (t *Task) patience() time.Duration {
	if t.Limit == 0 {
		return 20 * time.Second
	}
	return min(max(t.Limit/10, 5*time.Second), 30*time.Second)
}

// Finish keeps the files of a program that has ended, and returns the exit status of the lab.
func (t *Task) Finish(r job.Result) (int, error) {
	err := keep(t.Keep, r.Files)
	switch {
	case err != nil:
		return job.ExitLab, err
	case len(r.Warnings) > 0:
		err = fmt.Errorf("%w:\n%s", errWarned, strings.Join(r.Warnings, "\n"))
	case len(r.Lost) > 0:
		err = fmt.Errorf("the program has left the machine without\n%s", strings.Join(r.Lost, "\n"))
	}
	if err != nil && r.Exit == 0 {
		r.Exit = job.ExitLab
	}
	return r.Exit, err
}

// TimeoutFlag begins the argument of a test with its time.
const TimeoutFlag = "-test.timeout="

// shorten reduces a test's time by the time since begun, so that the test ends by itself and prints its
// stacks before go test kills it.
func shorten(args []string, begun time.Time) ([]string, error) {
	i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, TimeoutFlag) })
	if i < 0 || begun.IsZero() {
		return args, nil
	}
	whole, err := time.ParseDuration(strings.TrimPrefix(args[i], TimeoutFlag))
	if err != nil || whole <= 0 {
		return args, nil
	}
	left := (whole - time.Since(begun)).Truncate(time.Millisecond)
	if left <= 0 {
		return nil, fmt.Errorf("the test's time of %v has passed before it could start", whole)
	}
	args = slices.Clone(args)
	args[i] = TimeoutFlag + left.String()
	return args, nil
}
