package examples

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestContainer starts examples/container as docs/deploy.md does with docker: by an OCI
// runtime, in a root that holds only the program, as a user without capabilities, with two
// device nodes, 64 MiB of locked memory and the host's network. It asks the service for a
// page and, inside the container, for its health, and stops it.
func TestContainer(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		addr := labtest.AddrOf(device) + ":8080"
		bundle := t.TempDir()
		root := filepath.Join(bundle, "root")
		labtest.Check(t, os.Mkdir(root, 0o755))
		program := labtest.Must(os.ReadFile(labtest.Built(t, "container")))(t)
		labtest.Check(t, os.WriteFile(filepath.Join(root, "program"), program, 0o755))
		config := labtest.Must(json.Marshal(containerConfig(t, addr, device)))(t)
		labtest.Check(t, os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o644))

		runtime := []string{"--root", filepath.Join(bundle, "state"), "--cgroup-manager", "disabled"}
		crun := func(args ...string) *exec.Cmd {
			return exec.CommandContext(t.Context(), "crun", append(runtime, args...)...)
		}
		name := "verbs-" + device
		service := crun("run", "--bundle", bundle, name)
		var stderr bytes.Buffer
		service.Stderr = &stderr
		stdout := labtest.Must(service.StdoutPipe())(t)
		labtest.Check(t, service.Start())
		t.Cleanup(func() {
			crun("delete", "--force", name).Run()
			service.Wait()
		})
		lines := bufio.NewScanner(stdout)
		logged := func(msg string) {
			t.Helper()
			var line struct{ Msg, Network string }
			for lines.Scan() {
				if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
					t.Fatalf("%v: %s", err, lines.Text())
				}
				if line.Msg == msg {
					if line.Network != "" && line.Network != "rdma" {
						t.Errorf("logged %s", lines.Text())
					}
					return
				}
			}
			t.Fatalf("%q is not logged\n%s", msg, stderr.String())
		}
		logged("serving")

		out, errs, exit := run(t, "http", "get", "http://"+addr+"/world")
		if want := "connected by rdma\nhello world\n"; out != want || errs != "" || exit != 0 {
			t.Errorf("the client: exit status %d, output\n%s%s", exit, out, errs)
		}
		logged("request")
		// crun exec looks for programs in the lab's root, which is no mount of its own.
		var state struct{ Pid int }
		labtest.Check(t, json.Unmarshal(labtest.Must(crun("state", name).Output())(t), &state))
		check := func(addr string) (string, error) {
			cmd := exec.CommandContext(t.Context(), "nsenter", "--target", strconv.Itoa(state.Pid),
				"--all", "--root", "--wd=/", "--setuid", "65534", "--setgid", "65534", "/program", "check")
			cmd.Env = []string{"ADDR=" + addr}
			out, err := cmd.CombinedOutput()
			return string(out), err
		}
		if out, err := check(addr); err != nil || out != "" {
			t.Errorf("the health check: %v\n%s", err, out)
		}
		if out, err := check(labtest.AddrOf(device) + ":8081"); err == nil || !strings.Contains(out, "refused") {
			t.Errorf("the health check of a service that does not run: %v\n%s", err, out)
		}
		labtest.Check(t, crun("kill", name, "TERM").Run())
		logged("shut down")
		if err := service.Wait(); err != nil {
			t.Errorf("the service: %v\n%s", err, stderr.String())
		}
	})
}

// containerConfig returns what docker makes of its options: config.json of
// https://github.com/opencontainers/runtime-spec.
func containerConfig(t *testing.T, addr, device string) any {
	type object = map[string]any
	var devices []object
	rules := []object{{"allow": false, "access": "rwm"}}
	for _, path := range []string{"/dev/infiniband/rdma_cm", labtest.Must(uverbs.Find(device))(t).Node} {
		var st unix.Stat_t
		labtest.Check(t, unix.Stat(path, &st))
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
			"args": []string{"/program"}, "cwd": "/", "env": []string{"ADDR=" + addr},
			"capabilities":    object{},
			"noNewPrivileges": true,
			"rlimits":         []object{{"type": "RLIMIT_MEMLOCK", "soft": 64 << 20, "hard": 64 << 20}},
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
