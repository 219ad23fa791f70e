package nic

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestDriver removes the adapter and its drivers, and brings them back. It leaves the machine as it
// was.
func TestDriver(t *testing.T) {
	a := newAdapter(t)
	pci, drivers := filepath.Base(pciDevice(t)), []string{"mlx5_ib", "mlx5_core"}
	if a.erdma {
		drivers = []string{"erdma"}
	}
	link := readLink(t)
	trial := func(t *testing.T) {
		t.Helper()
		link.restore(t)
		a = waitAdapter(t)
		a.traffic(t, 50).wait()
		checkLog(t)
	}
	gone := func(t *testing.T) {
		t.Helper()
		labtest.Until(t, device+" to be gone", func() bool { return !exists(sysfs) })
	}
	t.Run("removal", func(t *testing.T) {
		labtest.Check(t, os.WriteFile("/sys/bus/pci/devices/"+pci+"/remove", []byte("1"), 0))
		gone(t)
		checkLog(t)
	})
	t.Run("rescan", func(t *testing.T) {
		labtest.Check(t, os.WriteFile("/sys/bus/pci/rescan", []byte("1"), 0))
		trial(t)
	})
	t.Run("removal under traffic", func(t *testing.T) {
		watch := start(t, "stdbuf", "-oL", "ibv_asyncwatch", "-d", device)
		<-watch.Printed
		before := interrupts(t)
		c := a.traffic(t, 100_000_000)
		labtest.Until(t, "traffic", func() bool { return interrupts(t) > before+100 })
		begin, removed := time.Now(), make(chan error, 1)
		go func() { removed <- os.WriteFile("/sys/bus/pci/devices/"+pci+"/remove", []byte("1"), 0) }()
		if !labtest.OlderERDMA(device) { // otherwise the kernel waits until the programs have ended
			gone(t)
			t.Logf("removed within %.1f s", time.Since(begin).Seconds())
			labtest.Until(t, "ibv_asyncwatch to see the end", func() bool { return watch.Out.Has("IBV_EVENT_DEVICE_FATAL") })
		}
		watch.Kill()
		c.client.Kill()
		c.server.Kill()
		labtest.Check(t, <-removed)
		gone(t)
		checkLog(t)
		labtest.Check(t, os.WriteFile("/sys/bus/pci/rescan", []byte("1"), 0))
		trial(t)
	})
	t.Run("unload", func(t *testing.T) {
		for _, driver := range drivers {
			labtest.Shell(t, "modprobe -r "+driver)
			gone(t)
			if exists("/sys/module/" + driver) {
				t.Errorf("%s is still loaded", driver)
			}
		}
		checkLog(t)
		labtest.Shell(t, "modprobe "+drivers[0])
		trial(t)
	})
}

// pciDevice returns the folder of the adapter's PCI device. The kernel of 6.12 does not link it to a device of
// erdma.
func pciDevice(t *testing.T) string {
	t.Helper()
	for _, vendor := range labtest.Must(filepath.Glob("/sys/bus/pci/devices/*/vendor"))(t) {
		if b, _ := os.ReadFile(vendor); strings.HasPrefix(string(b), "0x15b3") || strings.HasPrefix(string(b), "0x1ded") {
			return filepath.Dir(vendor)
		}
	}
	t.Fatal("no PCI device of an adapter")
	return ""
}

// traffic starts two programs that exchange messages, and wait for events.
func (a adapter) traffic(t *testing.T, messages int) couple {
	t.Helper()
	if a.iwarp {
		args := []string{"-a", address, "-S", "4096", "-C", strconv.Itoa(messages)}
		return startCM(t, append([]string{"rping", "-s"}, args...), append([]string{"rping", "-c"}, args...))
	}
	return a.pingpong(t, patience, "rc", "-e", "-n", strconv.Itoa(messages))
}

// netLink is the adapter's network link.
type netLink struct {
	name  string // none on InfiniBand
	addrs []string
}

func readLink(t *testing.T) netLink {
	t.Helper()
	l := netLink{name: netdev()}
	if l.name == "" {
		return l
	}
	link := labtest.Must(net.InterfaceByName(l.name))(t)
	for _, a := range labtest.Must(link.Addrs())(t) {
		if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLinkLocalUnicast() {
			l.addrs = append(l.addrs, a.String())
		}
	}
	return l
}

// restore configures the link again, which has come back.
func (l netLink) restore(t *testing.T) {
	t.Helper()
	if l.name == "" {
		return
	}
	labtest.Until(t, l.name, func() bool { return netdev() == l.name })
	script := "ip link set up dev " + l.name + "\n"
	for _, a := range l.addrs {
		script += fmt.Sprintf("ip addr add %s dev %s nodad\n", a, l.name)
	}
	labtest.Shell(t, script)
}

// interrupts returns how many interrupts the adapter has raised.
func interrupts(t *testing.T) (sum int) {
	t.Helper()
	for line := range strings.Lines(string(labtest.Must(os.ReadFile("/proc/interrupts"))(t))) {
		if !strings.Contains(line, "mlx5") && !strings.Contains(line, "erdma") {
			continue
		}
		for _, f := range strings.Fields(line)[1:] {
			n, err := strconv.Atoi(f)
			if err != nil {
				break // the counts of processors are followed by names
			}
			sum += n
		}
	}
	return sum
}
