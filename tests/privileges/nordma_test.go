package privileges

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// rxeAddr is the address of rxe0, whose driver these tests take away.
var rxeAddr = labtest.AddrOf(labtest.RXE)

// dialAll returns the errors of dialing addr with each package.
func dialAll(ctx context.Context, addr string) map[string]error {
	errs := make(map[string]error)
	c, err := cm.Dial(ctx, addr)
	if err == nil {
		c.Close()
	}
	errs["cm.Dial "+addr] = err
	rc, err := new(rsock.Dialer).DialContext(ctx, "rdma", addr)
	if err == nil {
		rc.Close()
	}
	errs["rsock.Dial "+addr] = err
	return errs
}

// listenAll returns the errors of listening on addr with each package.
func listenAll(ctx context.Context, addr string) map[string]error {
	errs := make(map[string]error)
	l, err := cm.Listen(ctx, addr)
	if err == nil {
		l.Close()
	}
	errs["cm.Listen "+addr] = err
	rl, err := new(rsock.ListenConfig).Listen(ctx, "rdma", addr)
	if err == nil {
		rl.Close()
	}
	errs["rsock.Listen "+addr] = err
	return errs
}

// checkNoRDMA checks that all errors match ErrNoRDMA and why.
func checkNoRDMA(t *testing.T, errs map[string]error, why error) {
	t.Helper()
	for what, err := range errs {
		t.Logf("%s: %v", what, err)
		if !errors.Is(err, verbs.ErrNoRDMA) || !errors.Is(err, why) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %v", what, err, why)
		}
	}
}

// checkOtherError checks that all errors match why, and none ErrNoRDMA.
func checkOtherError(t *testing.T, errs map[string]error, why error) {
	t.Helper()
	for what, err := range errs {
		t.Logf("%s: %v", what, err)
		if errors.Is(err, verbs.ErrNoRDMA) || !errors.Is(err, why) {
			t.Errorf("%s: %v, want %v", what, err, why)
		}
	}
}

// TestNoCM dials and listens without the connection manager's node: on a machine
// without RDMA, and in the lab with an empty /dev/infiniband.
func TestNoCM(t *testing.T) {
	withNodes(t, nil, func(t *testing.T) {
		checkNoRDMA(t, dialAll(within(t), "10.9.0.1:7"), verbs.ErrNoCM)
		checkNoRDMA(t, listenAll(within(t), ":0"), verbs.ErrNoCM)
		checkNoRDMA(t, listenAll(within(t), "10.9.0.1:0"), verbs.ErrNoCM)
		_, err := cm.Lookup(within(t), "10.9.0.1")
		checkNoRDMA(t, map[string]error{"cm.Lookup": err}, verbs.ErrNoCM)
		_, err = cm.DefaultTransport().NewChannel()
		checkNoRDMA(t, map[string]error{"cm.Transport.NewChannel": err}, verbs.ErrNoCM)
	})
}

// TestNoNode dials and listens in a container without nodes of devices.
func TestNoNode(t *testing.T) {
	labtest.RequireKernel(t)
	withNodes(t, []string{"rdma_cm"}, func(t *testing.T) {
		for _, host := range []string{rxeAddr, labtest.AddrOf(labtest.SIW)} {
			checkNoRDMA(t, dialAll(within(t), host+":7"), verbs.ErrNoNode)
			checkNoRDMA(t, listenAll(within(t), host+":0"), verbs.ErrNoNode)
		}
		checkNoRDMA(t, listenAll(within(t), ":0"), verbs.ErrNoNode)
	})
}

// TestSomeNodes listens in a container with the node of one device.
func TestSomeNodes(t *testing.T) {
	labtest.RequireKernel(t)
	withNodes(t, []string{"rdma_cm", "uverbs1"}, func(t *testing.T) {
		for what, err := range listenAll(within(t), ":0") {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		checkNoRDMA(t, listenAll(within(t), rxeAddr+":0"), verbs.ErrNoNode)
	})
}

// TestNoDriver dials and listens on a device that no driver supports: its node is that of
// /dev/random, which answers unknown commands with EINVAL, as do devices of other
// drivers.
func TestNoDriver(t *testing.T) {
	labtest.RequireKernel(t)
	withNodes(t, []string{"rdma_cm", "uverbs0 c 1 8"}, func(t *testing.T) {
		checkNoRDMA(t, dialAll(within(t), rxeAddr+":7"), verbs.ErrNoDriver)
		checkNoRDMA(t, listenAll(within(t), rxeAddr+":0"), verbs.ErrNoDriver)
	})
}

// withNodes runs a test in a process that sees only the named nodes in /dev/infiniband. A node may
// have arguments for mknod.
func withNodes(t *testing.T, nodes []string, test func(t *testing.T)) {
	labtest.RequireKernel(t)
	const dir = "/dev/infiniband"
	if os.Getenv("PRIVILEGES_CHILD") != "" {
		test(t)
		return
	}
	script := "mount -t tmpfs none " + dir
	for _, n := range nodes {
		if strings.Contains(n, " ") {
			script += " && mknod " + dir + "/" + n
			continue
		}
		info := labtest.Must(os.Stat(dir + "/" + n))(t)
		rdev := info.Sys().(*syscall.Stat_t).Rdev
		script += fmt.Sprintf(" && mknod %s/%s c %d %d", dir, n, unix.Major(rdev), unix.Minor(rdev))
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script+` && exec "$0" "$@"`, os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v", "-test.timeout", "4m")
	cmd.Env = append(os.Environ(), "PRIVILEGES_CHILD=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
}

// TestNoRoute dials and listens at addresses that no device serves.
func TestNoRoute(t *testing.T) {
	labtest.RequireKernel(t)
	run(t, "ip link add plain type dummy", "ip addr add 10.8.0.1/24 dev plain", "ip link set plain up")
	defer run(t, "ip link del plain")
	for _, addr := range []string{"8.8.8.8:7", "127.0.0.1:7", "[::1]:7", "localhost:7", "10.8.0.1:7", "10.8.0.2:7"} {
		checkNoRDMA(t, dialAll(within(t), addr), verbs.ErrNoRoute)
	}
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0", "localhost:0", "10.8.0.1:0", "10.8.0.1:7471"} {
		checkNoRDMA(t, listenAll(within(t), addr), verbs.ErrNoRoute)
	}
	d := rsock.Dialer{LocalAddr: netip.MustParseAddrPort("10.8.0.1:0")}
	_, err := d.Dial("rdma", rxeAddr+":7")
	checkNoRDMA(t, map[string]error{"from another address": err}, verbs.ErrNoRoute)
}

// TestNoDevice dials and listens when the devices have gone.
func TestNoDevice(t *testing.T) {
	labtest.RequireKernel(t)
	if len(labtest.Adapters()) > 0 {
		t.Skip("an adapter stays")
	}
	labtest.Until(t, "the connection manager to close idle devices", func() bool { return cm.DefaultTransport().Stats().Devices == 0 })
	run(t, "rdma link del rxe0", "rdma link del siw0")
	defer run(t, "rdma link add rxe0 type rxe netdev v0", "rdma link add siw0 type siw netdev d0")
	for _, host := range []string{rxeAddr, labtest.AddrOf(labtest.SIW)} {
		checkNoRDMA(t, dialAll(within(t), host+":7"), verbs.ErrNoRoute)
		checkNoRDMA(t, listenAll(within(t), host+":0"), verbs.ErrNoRoute)
	}
	for _, host := range []string{"", "0.0.0.0", "[::]"} {
		checkNoRDMA(t, listenAll(within(t), host+":0"), verbs.ErrNoDevice)
		l := labtest.Must((&rsock.ListenConfig{Fallback: rsock.FallbackMissing}).Listen(within(t), "rdma", host+":0"))(t)
		if l.(*rsock.Listener).RDMA() {
			t.Errorf("listens at %v by RDMA", l.Addr())
		}
		l.Close()
	}
}

func run(t *testing.T, commands ...string) {
	t.Helper()
	for _, c := range commands {
		if out, err := exec.Command("sh", "-c", c).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", c, err, out)
		}
	}
}

// TestOtherErrors tests failures that do not mean that RDMA is missing.
func TestOtherErrors(t *testing.T) {
	labtest.RequireKernel(t)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	labtest.Each(t, func(t *testing.T, device string) {
		host := labtest.AddrOf(device)
		checkOtherError(t, dialAll(within(t), host+":7"), syscall.ECONNREFUSED)
		checkOtherError(t, dialAll(canceled, host+":7"), context.Canceled)
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		run(t, "ip neigh replace 10.9.0.78 lladdr 02:00:00:00:00:78 dev v0")
		defer run(t, "ip neigh del 10.9.0.78 dev v0")
		checkOtherError(t, dialAll(short, "10.9.0.78:7"), context.DeadlineExceeded)
		checkOtherError(t, dialAll(within(t), "[fe80::1]:7"), syscall.EINVAL)
		checkOtherError(t, listenAll(within(t), "[fe80::1]:7"), syscall.EINVAL)
		checkOtherError(t, listenAll(within(t), "192.0.2.1:7"), syscall.EADDRNOTAVAIL)
		l := labtest.Must(cm.Listen(within(t), host+":0"))(t)
		defer l.Close()
		checkOtherError(t, listenAll(within(t), l.Addr().String()), syscall.EADDRINUSE)
	})
}

// TestNotPermitted dials and listens as a user who may not open the nodes.
func TestNotPermitted(t *testing.T) {
	for _, node := range []string{"rdma_cm", "uverbs0"} {
		t.Run(node, func(t *testing.T) {
			if os.Getenv("PRIVILEGES_CHILD") == "" {
				labtest.RequireKernel(t)
				path := "/dev/infiniband/" + node
				info := labtest.Must(os.Stat(path))(t)
				labtest.Check(t, os.Chmod(path, 0o600))
				defer os.Chmod(path, info.Mode())
			}
			inChild(t, func(t *testing.T, device string) {
				dropPrivileges(t)
				if node == "uverbs0" && device != labtest.RXE {
					return
				}
				checkOtherError(t, dialAll(within(t), labtest.AddrOf(device)+":7"), os.ErrPermission)
				if node == "rdma_cm" {
					checkOtherError(t, listenAll(within(t), labtest.AddrOf(device)+":0"), os.ErrPermission)
					checkOtherError(t, listenAll(within(t), ":0"), os.ErrPermission)
				}
			})
		})
	}
}
