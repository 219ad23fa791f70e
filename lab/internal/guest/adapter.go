//go:build linux

package guest

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/goverbs/verbs/lab/internal/job"
	"github.com/goverbs/verbs/rdmadev"
)

// addAdapters waits for the adapters, whose driver has been loaded, names them in their order, and
// configures their links. The first also gets the address of --udp, if any, from which it reaches all
// other hosts.
func addAdapters(all []job.Adapter, number int, udp netip.Addr) error {
	links, err := nameAdapters(all)
	if err != nil {
		return err
	}
	for i, a := range all {
		if a.MAC != "" {
			link, addrs := links[0], addrs(a.Device, number)
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
		if err := WaitActive(a.Device); err != nil {
			return err
		}
	}
	return nil
}

// nameAdapters waits for the adapters and numbers them in their order, as the kernel numbers them and
// their links in the order of hot-plug, which varies. It returns the names of the links.
func nameAdapters(all []job.Adapter) (links []string, err error) {
	var devices, names, eths []string
	for _, a := range all {
		device, err := WaitGUID(a.GUID)
		if err != nil {
			return nil, err
		}
		devices, names = append(devices, device), append(names, a.Device)
		if a.MAC != "" {
			var link string
			if !await(func() bool { link = findInSysfs("net", "address", a.MAC); return link != "" }) {
				return nil, fmt.Errorf("no network link with address %s appears in %v", a.MAC, readyLimit)
			}
			links, eths = append(links, link), append(eths, fmt.Sprint("eth", len(eths)))
		}
	}
	err = errors.Join(
		renumber(devices, names, func(from, to string) error {
			var d rdmadev.Device
			var err error
			await(func() bool { // ib_register_device adds it to sysfs before netlink
				d, err = rdmadev.Find(from)
				return err != nil || d.Index >= 0
			})
			if err != nil {
				return err
			}
			return d.Rename(to)
		}),
		renumber(links, eths, func(from, to string) error { return ip("link set " + from + " name " + to) }))
	return eths, err
}

// renumber renames devices. One may have the name that another gets.
func renumber(names, to []string, rename func(from, to string) error) error {
	for _, prefix := range []string{"new_", ""} {
		for i, from := range names {
			if from == to[i] {
				continue
			}
			names[i] = prefix + to[i]
			if err := rename(from, names[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// WaitGUID waits for a device with a system image GUID, and returns its name. Node GUIDs may be zero.
func WaitGUID(guid string) (device string, err error) {
	if !await(func() bool { device = findInSysfs("infiniband", "sys_image_guid", guid); return device != "" }) {
		return "", fmt.Errorf("no device with GUID %s appears in %v", guid, readyLimit)
	}
	return device, nil
}
