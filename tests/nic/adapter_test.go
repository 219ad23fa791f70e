package nic

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/internal/labtest/labdev"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/rdmadev"
)

// device is the adapter's name, address that of its network link.
var (
	device  = labdev.Adapters(append(labtest.Adapters(), "connectx"))[0]
	address = labtest.AddrOf(device)
	sysfs   = "/sys/class/infiniband/" + device
)

// present reports whether the lab has an adapter. A test may lose it.
var present = exists(sysfs)

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// adapter is the device under test.
type adapter struct {
	port  rdmadev.Port
	gid   int  // index of address on RoCE, or -1
	erdma bool // has RC only, by liberdma: without datagrams, shared receives and DC
	iwarp bool // an erdma that connects by rdma_cm only
}

// newAdapter returns the adapter, and checks the kernel's log when the test ends.
func newAdapter(t *testing.T) adapter {
	t.Helper()
	labtest.RequireKernel(t)
	if !present {
		t.Skip("needs an adapter: run by make test-nic, or with build/lab --nic connectx")
	}
	t.Cleanup(func() { checkLog(t) })
	return waitAdapter(t)
}

// waitAdapter waits until the port is active and has its GID.
func waitAdapter(t *testing.T) adapter {
	t.Helper()
	labtest.UntilActive(t, device)
	d := labtest.Must(rdmadev.Find(device))(t)
	a := adapter{port: d.Ports[0], gid: -1, erdma: strings.HasPrefix(device, "erdma"), iwarp: d.Type == rdmadev.NodeRNIC}
	if a.infiniBand() || a.iwarp {
		return a
	}
	labtest.Until(t, device+" to have a GID of "+address, func() bool {
		for _, g := range labtest.Must(a.port.GIDs())(t) {
			if g.Type == verbs.GIDRoCEv2 && g.GID == verbs.GID(netip.MustParseAddr(address).As16()) {
				a.gid = g.Index
			}
		}
		return a.gid >= 0
	})
	return a
}

func (a adapter) infiniBand() bool { return a.port.LinkLayer == verbs.LinkInfiniBand }

// needAddress skips a test of rdma_cm on InfiniBand, where it would need IPoIB, and that a subnet
// administrator.
func (a adapter) needAddress(t *testing.T) {
	t.Helper()
	if a.infiniBand() {
		t.Skip("rdma_cm needs IPoIB and a subnet administrator on InfiniBand")
	}
}

// needTypes skips a test of other QPs than RC.
func (a adapter) needTypes(t *testing.T) {
	t.Helper()
	if a.erdma {
		t.Skip("liberdma has only RC, without shared receives")
	}
}

// needExchange skips a test of programs that connect without rdma_cm.
func (a adapter) needExchange(t *testing.T) {
	t.Helper()
	if a.iwarp {
		t.Skip("iWARP connects by rdma_cm only")
	}
}

// gidArgs returns an option with the index of the GID, on RoCE.
func (a adapter) gidArgs(option string) []string {
	if a.gid < 0 {
		return nil
	}
	return []string{option, strconv.Itoa(a.gid)}
}

// patience is how long a program may take, on an emulated machine with other work.
const patience = 3 * time.Minute

func start(t *testing.T, args ...string) *labtest.Program {
	t.Helper()
	return labtest.Start(t, patience, args[0], args[1:]...)
}

// ports is the last port used: every pair has a port of its own.
var ports = 19000

// couple is a server and its client.
type couple struct{ server, client *labtest.Program }

// startTCP starts a program that exchanges addresses over TCP, as the server and as the client.
func startTCP(t *testing.T, limit time.Duration, args ...string) couple {
	t.Helper()
	ports++
	args = append(slices.Clip(args), "-p", strconv.Itoa(ports))
	s := labtest.Start(t, limit, args[0], args[1:]...)
	s.ListensTCP(ports)
	return couple{s, labtest.Start(t, limit, args[0], append(args[1:], "127.0.0.1")...)}
}

// wait checks that both have succeeded, and returns what they printed.
func (c couple) wait() (server, client string) {
	c.client.T.Helper()
	client = c.client.Wait()
	if c.client.Err != nil { // the server may wait forever
		c.server.Kill()
	}
	return c.server.Wait(), client
}

// netdev returns the name of the adapter's network link, or "".
func netdev() string {
	links, _ := filepath.Glob(sysfs + "/device/net/*")
	if len(links) == 0 {
		return ""
	}
	return filepath.Base(links[0])
}

// kernelLog is what the kernel has logged since it booted, as far as checkLog has not seen it.
var kernelLog *os.File

// reDriver matches lines of the drivers under test, and of what they belong to.
var reDriver = regexp.MustCompile(`mlx5|erdma|infiniband|ib_core|ib_uverbs|rdma|eth0|pcieport`)

// slowWC is what the kernel of 7.3 says if its test of write combining takes longer than 100 ms
// (mlx5_core_test_wc), as it may on an emulated processor.
const slowWC = "Write combining is not supported"

// overtaken is what the kernel says when it reads a port after an event, and a removal overtakes it
// (ib_cache_event_task).
const overtaken = "ib_query_port failed (-19)"

// checkLog fails the test if the drivers have written a warning, or worse, since the last call. The
// lab itself looks for bugs of the kernel.
func checkLog(t *testing.T) {
	t.Helper()
	for _, line := range newLines(t) {
		head, text, _ := strings.Cut(line, ";")
		level, _, _ := strings.Cut(head, ",")
		n := labtest.Must(strconv.Atoi(level))(t)
		if n&7 <= 4 && reDriver.MatchString(text) && !strings.Contains(text, slowWC) && !strings.Contains(text, overtaken) { // KERN_WARNING
			t.Errorf("the kernel's log: %s", text)
		}
	}
}

// newLines returns the lines of the kernel's log since the last call, as /dev/kmsg has them.
func newLines(t *testing.T) (lines []string) {
	t.Helper()
	if kernelLog == nil {
		kernelLog = labtest.Must(os.OpenFile("/dev/kmsg", os.O_RDONLY|unix.O_NONBLOCK, 0))(t)
	}
	raw := labtest.Must(kernelLog.SyscallConn())(t)
	buf := make([]byte, 8192)
	labtest.Check(t, raw.Control(func(fd uintptr) {
		for {
			n, err := unix.Read(int(fd), buf)
			if err == unix.EPIPE {
				continue // overwritten while reading
			}
			if err != nil {
				return
			}
			line, _, _ := strings.Cut(string(buf[:n]), "\n")
			lines = append(lines, line)
		}
	}))
	return lines
}

// TestMain prints what the tests run on, for the table.
func TestMain(m *testing.M) {
	if labtest.Lab && present {
		fmt.Printf("nic: %s\n", strings.Join(versions(), ", "))
	}
	os.Exit(m.Run())
}

// versions returns the releases of the kernel and of rdma-core, whose library drives the adapter, and the
// link layer.
func versions() []string {
	library, _ := filepath.EvalSymlinks(labtest.LibDir + "/libmlx5.so.1")
	_, library, _ = strings.Cut(strings.TrimPrefix(filepath.Base(library), "libmlx5.so.1."), ".") // of 24.44.0, rdma-core's version
	link, _ := os.ReadFile(sysfs + "/ports/1/link_layer")
	if node, _ := os.ReadFile(sysfs + "/node_type"); strings.Contains(string(node), "RNIC") {
		link = []byte("iWARP")
	}
	driver, _, _ := strings.Cut(device, "_")
	return []string{"kernel " + sys.KernelRelease(), "lib" + driver + " " + library, strings.TrimSpace(string(link))}
}
