//go:build linux

package guest

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goverbs/verbs/internal/labtest/labdev"
	"github.com/goverbs/verbs/lab/internal/job"
	"github.com/goverbs/verbs/rdmadev"
)

// addAdapters waits for the adapters in the guest, whose driver has been loaded, names them in
// their order, and configures their links. The first has the address of --udp as well, if there is
// one, from which it reaches all others.
func addAdapters(all []job.Adapter, host int, udp netip.Addr) error {
	links, err := nameAdapters(all)
	if err != nil {
		return err
	}
	for i, a := range all {
		device := labdev.Adapter(i)
		if !a.InfiniBand {
			link, addrs := links[0], addrs(device, host)
			links = links[1:]
			if i == 0 && udp.IsValid() && !strings.HasPrefix(addrs[0], udp.String()+"/") {
				addrs = append(addrs, udp.String()+"/32")
			}
			if err := configure(link, addrs); err != nil {
				return err
			}
			if i == 0 && udp.IsValid() {
				if err := ip("route add default dev " + link + " src " + udp.String()); err != nil {
					return err
				}
			}
		}
		if err := WaitActive(device); err != nil {
			return err
		}
	}
	return nil
}

// nameAdapters waits for adapters. The kernel has numbered them and their links in the order in
// which it found them, which may be another: hot-plug has no order. It returns the names of the
// links.
func nameAdapters(all []job.Adapter) (links []string, err error) {
	var devices []string
	for _, a := range all {
		device, err := WaitGUID(a.GUID)
		if err != nil {
			return nil, err
		}
		devices = append(devices, device)
		if !a.InfiniBand {
			link, err := WaitFor("/sys/class/infiniband/" + device + "/device/net/*")
			if err != nil {
				return nil, err
			}
			links = append(links, filepath.Base(link))
		}
	}
	err = errors.Join(
		number("mlx5_", devices, func(from, to string) error {
			d, err := rdmadev.Find(from)
			for begun := time.Now(); err == nil && d.Index < 0 && time.Since(begun) < readyLimit; d, err = rdmadev.Find(from) {
				time.Sleep(20 * time.Millisecond) // it is in sysfs before netlink has it (ib_register_device)
			}
			if err != nil {
				return err
			}
			return d.Rename(to)
		}),
		number("eth", links, func(from, to string) error { return ip("link set " + from + " name " + to) }))
	return links, err
}

// number gives names a prefix and a number each. Some may have the name of another.
func number(prefix string, names []string, rename func(from, to string) error) error {
	for _, p := range []string{"new_" + prefix, prefix} {
		for i, from := range names {
			if from == fmt.Sprint(prefix, i) {
				continue
			}
			names[i] = fmt.Sprint(p, i)
			if err := rename(from, names[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// WaitGUID waits for a device with a system image GUID, and returns its name. The node GUID may be
// zero.
func WaitGUID(guid string) (string, error) {
	for begun := time.Now(); time.Since(begun) < readyLimit; time.Sleep(20 * time.Millisecond) {
		files, _ := filepath.Glob("/sys/class/infiniband/*/sys_image_guid")
		for _, f := range files {
			if b, _ := os.ReadFile(f); strings.TrimSpace(string(b)) == guid {
				return filepath.Base(filepath.Dir(f)), nil
			}
		}
	}
	return "", fmt.Errorf("no device with GUID %s appears in %v", guid, readyLimit)
}
