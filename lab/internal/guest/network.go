//go:build linux

package guest

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest/labdev"
	"github.com/goverbs/verbs/lab/internal/job"
	"github.com/goverbs/verbs/rdmadev"
)

// device is a software device that every program finds, and the network link below it.
type device struct{ name, link string }

var devices = []device{{labdev.RXE, labdev.Links[labdev.RXE]}, {labdev.SIW, labdev.Links[labdev.SIW]}}

// addrs returns the addresses of a device in a machine.
func addrs(device string, number int) []string {
	v4, v6 := labdev.Addrs(device, max(number, 1))
	return []string{v4.String(), v6.String()}
}

// devicesOf names the wires of one of two machines and returns the devices on them.
func devicesOf(number int) ([]device, error) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for i, name := range job.Wires {
		at := slices.IndexFunc(links, func(l net.Interface) bool { return l.HardwareAddr.String() == job.MAC(i, number) })
		if at < 0 {
			return nil, fmt.Errorf("no network card for %s", name)
		}
		if err := ip("link set " + links[at].Name + " name " + name); err != nil {
			return nil, err
		}
	}
	if err := configure(job.ControlWire, []string{fmt.Sprintf("10.9.9.%d/24", number)}); err != nil {
		return nil, err
	}
	var all []device
	for i, d := range devices {
		all = append(all, device{d.name, job.Wires[i]})
	}
	return all, nil
}

func setupNetwork(number int) error {
	found := devices
	if number != 0 {
		var err error
		if found, err = devicesOf(number); err != nil {
			return err
		}
	} else if err := ip("link add v0 type veth peer name v1", "link set v1 up", "link add d0 type dummy"); err != nil {
		return err // v0 has no carrier while v1 is down
	}
	for _, d := range found {
		if err := configure(d.link, addrs(d.name, number)); err != nil {
			return err
		}
		if err := rdmadev.AddLink(d.name, strings.TrimSuffix(d.name, "0"), d.link); err != nil {
			return err
		}
	}
	for _, d := range found {
		if err := WaitActive(d.name); err != nil {
			return err
		}
	}
	return nil
}

func configure(link string, addrs []string) error {
	// Duplicate address detection would delay the IPv6 address, and its GID,
	// by a second.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+link+"/accept_dad", []byte("0"), 0o644); err != nil {
		return err
	}
	commands := []string{"link set " + link + " up"}
	for _, a := range addrs {
		commands = append(commands, "addr add "+a+" dev "+link)
	}
	return ip(commands...)
}

// ip runs commands of ip(8), in one process.
func ip(commands ...string) error {
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(commands, "; "), err, bytes.TrimSpace(out))
	}
	return nil
}

// LinkUp brings a link up. It runs no command, as lo is brought up before there are any.
func LinkUp(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req)
	}
	if err == nil {
		req.SetUint16(req.Uint16() | unix.IFF_UP)
		err = unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
	}
	if err != nil {
		return fmt.Errorf("bring up %s: %w", name, err)
	}
	return nil
}
