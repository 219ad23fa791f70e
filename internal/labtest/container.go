//go:build linux

package labtest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// Container is a process that an OCI runtime has started in a root that holds only its
// program, as a user without capabilities, with the host's network.
type Container struct {
	Stdout *bufio.Scanner

	name  string
	state string // folder of the runtime
	cmd   *exec.Cmd
	errs  bytes.Buffer
}

// ContainerOptions are options for StartContainer.
type ContainerOptions struct {
	Program string   // path, outside of the container
	Args    []string // after the program's name
	Env     []string
	Devices []string // paths of device nodes
	MemLock int      // bytes of memory that may be locked; 0 for none
}

// StartContainer starts a container, which is killed at the latest when the test ends.
func StartContainer(t testing.TB, o ContainerOptions) *Container {
	t.Helper()
	bundle := t.TempDir()
	c := &Container{name: "verbs-" + filepath.Base(bundle) + "-" + strconv.Itoa(os.Getpid()), state: filepath.Join(bundle, "state")}
	root := filepath.Join(bundle, "root")
	Check(t, os.Mkdir(root, 0o755))
	Check(t, os.WriteFile(filepath.Join(root, "program"), Must(os.ReadFile(o.Program))(t), 0o755))
	Check(t, os.WriteFile(filepath.Join(bundle, "config.json"), Must(json.Marshal(o.config(t)))(t), 0o644))
	c.cmd = c.crun("run", "--bundle", bundle, c.name)
	c.cmd.Stderr = &c.errs
	stdout := Must(c.cmd.StdoutPipe())(t)
	Check(t, c.cmd.Start())
	t.Cleanup(func() {
		c.crun("delete", "--force", c.name).Run()
		c.cmd.Wait()
	})
	c.Stdout = bufio.NewScanner(stdout)
	return c
}

func (c *Container) crun(args ...string) *exec.Cmd {
	return exec.Command("crun", append([]string{"--root", c.state, "--cgroup-manager", "disabled"}, args...)...)
}

// Stop sends SIGTERM, waits for the process, and returns its error.
func (c *Container) Stop() error {
	c.crun("kill", c.name, "TERM").Run() // it may have ended
	return c.cmd.Wait()
}

// Stderr returns the standard error of the process and the runtime. It is complete after Stop.
func (c *Container) Stderr() string { return c.errs.String() }

// Exec returns a command that runs the program once more in the container. crun exec looks
// for programs in the lab's root, which is no mount of its own, so this uses nsenter.
func (c *Container) Exec(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	var state struct{ Pid int }
	Check(t, json.Unmarshal(Must(c.crun("state", c.name).Output())(t), &state))
	return exec.Command("nsenter", append([]string{"--target", strconv.Itoa(state.Pid),
		"--all", "--root", "--wd=/", "--setuid", "65534", "--setgid", "65534", "/program"}, args...)...)
}

// config returns the contents of config.json (https://github.com/opencontainers/runtime-spec), as docker
// would write it.
func (o *ContainerOptions) config(t testing.TB) any {
	type object = map[string]any
	var devices []object
	rules := []object{{"allow": false, "access": "rwm"}}
	for _, path := range o.Devices {
		var st unix.Stat_t
		Check(t, unix.Stat(path, &st))
		major, minor := unix.Major(st.Rdev), unix.Minor(st.Rdev)
		devices = append(devices, object{
			"type": "c", "path": path, "major": major, "minor": minor, "fileMode": st.Mode &^ unix.S_IFMT,
		})
		rules = append(rules, object{"allow": true, "type": "c", "major": major, "minor": minor, "access": "rwm"})
	}
	return object{
		"ociVersion": "1.0.2",
		"process": object{
			"user": object{"uid": 65534, "gid": 65534},
			"args": append([]string{"/program"}, o.Args...), "cwd": "/", "env": o.Env,
			"capabilities":    object{},
			"noNewPrivileges": true,
			"rlimits":         []object{{"type": "RLIMIT_MEMLOCK", "soft": o.MemLock, "hard": o.MemLock}},
		},
		"root": object{"path": "root", "readonly": true},
		"mounts": []object{
			{"destination": "/proc", "type": "proc", "source": "proc"},
			{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=755"}},
			{"destination": "/sys", "type": "none", "source": "/sys", "options": []string{"rbind", "ro"}},
		},
		"linux": object{
			"namespaces": []object{{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}},
			"devices":    devices,
			"resources":  object{"devices": rules},
		},
	}
}
