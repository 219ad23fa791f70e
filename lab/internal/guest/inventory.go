//go:build linux

package guest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func without(list, others []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(others, s) })
}

// inventory returns the devices, links and processes of this machine, with the properties that tests
// depend on. It leaves out link-local addresses, which the kernel adds by itself.
func inventory() (all []string) {
	states, _ := filepath.Glob("/sys/class/infiniband/*/ports/1/state")
	for _, s := range states {
		b, _ := os.ReadFile(s)
		all = append(all, fmt.Sprintf("device %s, port %s", strings.Split(s, "/")[4], strings.TrimSpace(string(b))))
	}
	links, _ := net.Interfaces()
	for _, l := range links {
		up := "down"
		if l.Flags&net.FlagUp != 0 {
			up = "up"
		}
		all = append(all, fmt.Sprintf("link %s, %s, MTU %d", l.Name, up, l.MTU))
		addrs, _ := l.Addrs()
		for _, a := range addrs {
			if ip, _, err := net.ParseCIDR(a.String()); err == nil && !ip.IsLinkLocalUnicast() {
				all = append(all, fmt.Sprintf("address %s of %s", a, l.Name))
			}
		}
	}
	for _, p := range processes() {
		all = append(all, p.name)
	}
	return all
}

// process is one that is not a thread of the kernel, and no zombie.
type process struct {
	dir, name string
}

// processes returns the other processes.
func processes() (all []process) {
	dirs, _ := filepath.Glob("/proc/[1-9]*")
	for _, d := range dirs {
		if b, err := os.ReadFile(d + "/cmdline"); err == nil && len(b) > 0 && d != "/proc/1" {
			all = append(all, process{d, "process " + strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", " "))})
		}
	}
	return all
}

// stacks returns where in the kernel the threads of a process are, the innermost functions first.
func (p process) stacks() (all []string) {
	tasks, _ := filepath.Glob(p.dir + "/task/*/stack")
	for _, t := range tasks {
		b, _ := os.ReadFile(t)
		stack := strings.ReplaceAll(strings.TrimSpace(string(b)), "[<0>] ", "")
		all = append(all, strings.ReplaceAll(stack, "\n", " < "))
	}
	return all
}
