package doctor

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/nldev"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/rdmadev"
)

// patient is the system that is examined, and collects the findings.
type patient struct {
	sys     string // where sysfs is mounted
	modules string // the folder of the kernels' modules
	release string // of the kernel
	owns    bool   // this network namespace sees its own devices only

	findings []Finding
}

func newPatient() *patient { return &patient{sys: "/sys", modules: "/lib/modules"} }

func (p *patient) find(level Level, subject, text, remedy string) {
	p.findings = append(p.findings, Finding{level, subject, text, remedy})
}

// examine checks everything, or only one device of all, until ctx ends.
func (p *patient) examine(ctx context.Context, device string) {
	p.kernel()
	soft := host.Requested() // connections are made by devices in user space only
	if !soft && !p.sysfs() {
		return
	}
	if !soft {
		p.module("ib_uverbs", "class/infiniband_verbs", "programs cannot open devices")
		p.module("rdma_ucm", "class/misc/rdma_cm", "connections by IP address are impossible")
		p.node("/dev/infiniband/rdma_cm", "connection manager")
		p.memlock()
		p.namespace()
	}
	devices, err := rdmadev.Devices()
	if soft {
		devices = slices.DeleteFunc(devices, func(d rdmadev.Device) bool { return d.Driver != "soft" })
	}
	switch {
	case err != nil:
		p.find(Problem, "devices", err.Error(), "")
	case len(devices) == 0:
		p.noDevices(netlinkNames())
	}
	found := device == ""
	for _, d := range devices {
		if ctx.Err() == nil && (device == "" || device == d.Name) {
			found = true
			p.device(ctx, d)
		}
	}
	if !found && ctx.Err() == nil {
		p.find(Problem, device, "there is no such device", "verbs devices lists them")
	}
}

// noDevices reports that sysfs has no devices, where netlink lists some or none.
func (p *patient) noDevices(listed []string) {
	dir := filepath.Join(p.sys, "class/infiniband")
	switch {
	case len(listed) > 0:
		p.find(Problem, "devices", "the kernel has "+strings.Join(listed, ", ")+", and "+dir+" does not show them",
			"look for what is mounted over it (findmnt -R "+p.sys+"); in a container, let the runtime show all of "+p.sys)
	case p.owns:
		p.find(Problem, "devices", "there are none in this network namespace, and it does not see those of others",
			"let all namespaces see all (rdma system set netns shared), or move an adapter here (verbs link move, from its namespace); in the machine's own namespace "+p.makeDevice())
	default:
		p.find(Problem, "devices", "there are none", p.makeDevice())
	}
}

// sysfs checks that sysfs is mounted: without it, programs find no devices, and nothing is known.
func (p *patient) sysfs() bool {
	_, err := os.Stat(filepath.Join(p.sys, "class"))
	if err == nil {
		return true
	}
	text, remedy := err.Error(), ""
	if os.IsNotExist(err) {
		text, remedy = "is not mounted", "mount -t sysfs sysfs "+p.sys+"; in a container, let the runtime mount it"
	}
	text += ": programs find no devices, and modules and ports cannot be checked"
	if names := netlinkNames(); len(names) > 0 {
		text += "; the kernel has " + strings.Join(names, ", ")
	}
	p.find(Problem, p.sys, text, remedy)
	return false
}

// netlinkNames returns the names of the devices that the kernel lists without sysfs.
func netlinkNames() (names []string) {
	nldev.Dump(abi.RDMA_NLDEV_CMD_GET, nil, func(a nldev.Attrs) error {
		names = append(names, slices.Clone(a).Map()[abi.RDMA_NLDEV_ATTR_DEV_NAME].String())
		return nil
	}) // none if it does not answer
	return names
}

const useSoft = "VERBS_SOFT=1 gives a program a device in user space, and VERBS_SOFT=127.0.0.2 a second one (docs/soft.md)"

// makeDevice returns how to get a device.
func (p *patient) makeDevice() string {
	cards := "network cards need their driver's RDMA module (mlx5_ib, irdma, bnxt_re)"
	if lacks := p.lacks("rdma_rxe"); lacks != "" {
		return cards + "; for a software device: " + lacks
	}
	return "verbs link add rxe0 rxe eth0 (rdma link add rxe0 type rxe netdev eth0) makes a software device; " + cards + "; without either, " + useSoft
}

// lacks returns why a module cannot be loaded on this system and what to do instead, or "" if it
// can be.
func (p *patient) lacks(module string) string {
	dir := filepath.Join(p.modules, p.release)
	if _, err := os.Stat(dir); err != nil {
		return "there is no " + dir + ": in a container load " + module + " on the host, else install the modules of this kernel; or " + useSoft
	}
	for _, name := range []string{"modules.dep", "modules.builtin"} {
		list, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || bytes.Contains(list, []byte("/"+module+".ko")) {
			return ""
		}
	}
	return "this kernel was built without " + module + ": start one that has it; or " + useSoft
}

// kernel checks the kernel's version.
func (p *patient) kernel() {
	release := sys.KernelRelease()
	p.release = release
	if sys.Before(release, 6, 1) {
		p.find(Note, "kernel", release+" is older than 6.1, the oldest kernel that is tested", "")
		return
	}
	p.find(OK, "kernel", release, "")
}

// module checks that a module is loaded, or built in: it then makes a path in sysfs.
func (p *patient) module(name, path, without string) {
	_, err := os.Stat(filepath.Join(p.sys, path))
	switch {
	case err == nil:
		p.find(OK, "module "+name, "loaded", "")
	case os.IsNotExist(err):
		p.find(Problem, "module "+name, "is not loaded: "+without,
			cmp.Or(p.lacks(name), "modprobe "+name+"; for the next start add it to /etc/modules-load.d/rdma.conf"))
	default:
		p.find(Note, "module "+name, "not known to be loaded: "+err.Error(), "")
	}
}

// node checks that a device node can be opened.
func (p *patient) node(path, what string) bool {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	switch {
	case err == nil:
		f.Close()
		p.find(OK, path, what+" can be opened", "")
		return true
	case os.IsNotExist(err):
		p.find(Problem, path, "the node of the "+what+" is missing", "load its module; in a container, pass the node: docker run --device "+path)
	case os.IsPermission(err):
		remedy := "join the group that owns it, or change that by a udev rule (docs/deploy.md)"
		if info, serr := os.Stat(path); serr == nil {
			remedy = fmt.Sprintf("its mode is %v: %s", info.Mode().Perm(), remedy)
		}
		p.find(Problem, path, "no permission to open the "+what, remedy)
	default:
		p.find(Problem, path, err.Error(), "")
	}
	return false
}

// memlock checks the limit of locked memory.
func (p *patient) memlock() {
	const subject = "locked memory"
	limit, _ := sys.LockedMemory()
	text := fmt.Sprintf("%d KiB", limit/1024)
	remedy := "ulimit -l, LimitMEMLOCK= of systemd, docker run --ulimit memlock=BYTES, or CAP_IPC_LOCK"
	switch {
	case limit == sys.Unlimited:
		p.find(OK, subject, "unlimited", "")
	case sys.LocksFreely():
		p.find(OK, subject, text+"; CAP_IPC_LOCK exempts this process on most kernels", "")
	case limit < 64<<10:
		p.find(Problem, subject, text+" are too little for a connection", remedy)
	case limit < 64<<20:
		p.find(Note, subject, text+" are enough for some connections only", remedy)
	default:
		p.find(OK, subject, text, "")
	}
}

// namespace reports whether devices of other network namespaces are visible here.
func (p *patient) namespace() {
	s, err := rdmadev.ReadSystem()
	switch {
	case err != nil:
		p.find(Note, "network namespaces", strings.TrimSpace(err.Error()), "")
	case s.SharedDevices:
		p.find(OK, "network namespaces", "all see every device, and use those with an address in them", "")
	default:
		p.owns = true
		p.find(OK, "network namespaces", "each sees its own devices only", "")
	}
}
