//go:build linux

package machine

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goverbs/verbs/lab/debian"
	"github.com/goverbs/verbs/lab/internal/image"
	"github.com/goverbs/verbs/lab/internal/job"
)

// A state is a saved machine that is ready for a job, in a file. The first run with a kernel and
// options saves it, and later ones restore it in a second, where booting takes several. It is valid for
// the same files, command line and QEMU until this machine restarts, as the guest has measured the
// frequency of this machine's time stamp counter.
type state struct {
	file       string
	restored   bool
	mapped     bool   // the file has a hole for each empty page
	unfinished string // the file's name while it is being saved
	monitor    string // QEMU's socket; "" if the machine is not saved
}

// newState makes vm restore its state from the cache or, if there is none, be saved when it is ready. It does
// so under plain tcg only. Other machines boot each time: with KVM that is quick; the clocks of dilated and
// icount would continue from another start; one of two machines may go down and boot again, and must not
// repeat the numbers of its connections; with --debug the user sees the boot.
func newState(k image.Kernel, opt Options, vm *exec.Cmd, dir string) (*state, error) {
	if opt.Accel != "tcg" || k.UML() || opt.net != nil || opt.Debug {
		return &state{}, nil
	}
	sum := sha256.New()
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, err
	}
	initramfs, err := os.ReadFile(filepath.Join(dir, "initramfs"))
	if err != nil {
		return nil, err
	}
	args := slices.DeleteFunc(slices.Clone(vm.Args), func(arg string) bool { return strings.Contains(arg, "mount_tag=write") })
	fmt.Fprintf(sum, "%s%s%s", boot, initramfs, strings.NewReplacer(dir, "", qemuValue(dir), "").Replace(strings.Join(args, " ")))
	drivers, err := k.ModuleFiles(opt.modules()...)
	if err != nil {
		return nil, err
	}
	files := []string{vm.Path, k.Image}
	for _, d := range drivers {
		files = append(files, filepath.Join(k.Modules, d))
	}
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(sum, "%s %d %d", f, info.Size(), info.ModTime().UnixNano())
	}
	s := &state{file: filepath.Join(debian.CacheDir(), fmt.Sprintf("%s%x", StatePrefix(k, opt), sum.Sum(nil)[:8]))}
	// A machine with adapters shares its memory with them. In shared memory, saving would allocate each
	// empty page that QEMU looks at, which takes seconds: mapped-ram skips them.
	if s.mapped = len(opt.NICs) > 0; s.mapped {
		vm.Args = append(vm.Args, "-global", "migration.mapped-ram=on")
	}
	if useState(s.file) {
		s.restored = true
		vm.Env = append(vm.Environ(), stateVariable+s.file)
		vm.Args = append(vm.Args, "-incoming", s.uri("cat ", s.file))
		return s, nil
	}
	s.unfinished = filepath.Join(debian.CacheDir(), StatePrefix(k, opt)+unfinishedState)
	s.monitor = filepath.Join(dir, qmpSocket)
	vm.Env = append(vm.Environ(), stateVariable+s.unfinished)
	return s, nil
}

// uri returns where QEMU reads or writes a state: a shell's command, or a file.
func (s *state) uri(command, file string) string {
	if s.mapped {
		return "file:" + file
	}
	return "exec:" + command + stateFile
}

// QEMU passes a variable to the shell that reads or writes a state.
const (
	stateVariable = "LAB_STATE="
	stateFile     = `"$LAB_STATE"`
)

// useState reports whether there is a state, and marks it as the last that was used.
func useState(file string) bool {
	now := time.Now()
	os.Chtimes(file, time.Time{}, now) // without it only the order of pruneStates is off
	return image.Exist(file)
}

// keptStates is the number of states of a kernel with options in the cache: several builds of rdmalab, such as
// of two checkouts, share it. A state takes 100 to 200 MB.
const keptStates = 4

// pruneStates removes the states with a prefix, but the last keptStates that were used.
func pruneStates(prefix string) error {
	files, err := filepath.Glob(prefix + "*")
	used := map[string]time.Time{}
	for _, f := range files {
		if info, err := os.Stat(f); err == nil && !strings.HasSuffix(f, unfinishedState) {
			used[f] = info.ModTime()
		}
	}
	old := slices.SortedFunc(maps.Keys(used), func(a, b string) int { return used[b].Compare(used[a]) })
	for _, f := range old[min(keptStates, len(old)):] {
		if rerr := os.Remove(f); !errors.Is(rerr, fs.ErrNotExist) { // another lab may remove it
			err = errors.Join(err, rerr)
		}
	}
	return err
}

// unfinishedState ends the name of a state while it is being saved.
const unfinishedState = "new"

// StatePrefix begins the names of the states of a kernel with options. They differ in files and command lines,
// such as of another build of rdmalab.
func StatePrefix(k image.Kernel, opt Options) string {
	kind := ""
	if len(opt.NICs) > 0 {
		kind = "nic-"
	}
	return fmt.Sprintf("state-%s%s-%s-%d-%d-", kind, k.Arch.Name, k.Release, opt.Mem, opt.CPUs)
}

// save saves the machine, which must be ready, unless it has no monitor or another lab has saved it.
func (s *state) save() error {
	if s.monitor == "" || image.Exist(s.file) {
		return nil
	}
	f, err := os.OpenFile(s.unfinished, os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) { // another lab saves its machine, or was killed
		if info, err := os.Stat(s.unfinished); err == nil && time.Since(info.ModTime()) > time.Minute {
			os.Remove(s.unfinished)
		}
		return nil
	}
	if err != nil {
		return err
	}
	f.Close()
	if err := s.migrate(); err != nil {
		os.Remove(s.unfinished)
		return err
	}
	if err := os.Rename(s.unfinished, s.file); err != nil {
		return err
	}
	return pruneStates(strings.TrimSuffix(s.unfinished, unfinishedState))
}

// migrate writes the state, and lets the machine continue: QEMU refuses that before the migration has a
// final status.
func (s *state) migrate() error {
	q, err := dialQMP(s.monitor)
	if err != nil {
		return err
	}
	defer q.conn.Close()
	if _, err := q.do("migrate-set-parameters", map[string]any{"max-bandwidth": int64(100 << 30)}); err != nil {
		return err
	}
	if _, err := q.do("migrate", map[string]any{"uri": s.uri("cat >", s.unfinished)}); err != nil {
		return err
	}
	migration, err := q.await("query-migrate", "completed", "failed", "cancelled")
	if err != nil {
		return err
	}
	if _, err := q.do("cont", nil); err != nil {
		return err
	}
	if migration != "completed" {
		return fmt.Errorf("QEMU: its migration is %s", migration)
	}
	_, err = q.await("query-status", running)
	return err
}

// newFresh returns the time and random numbers for a machine that is restored now.
func newFresh() *job.Fresh {
	f := &job.Fresh{Time: time.Now(), Seed: make([]byte, 32)}
	rand.Read(f.Seed)
	return f
}
