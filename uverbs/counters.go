package uverbs

import (
	"os"
	"path/filepath"
	"strconv"

	"github.com/goverbs/verbs/internal/host"
)

// Counters returns the statistics of a port by their names in sysfs: those of the driver
// ("sent_pkts", "rcvd_pkts" on rxe) and, if there are any, the standard ones
// ("port_xmit_data"). rdma-statistic(8) shows the same values. They may be up to 10 ms
// old.
func (c *Context) Counters(port int) (map[string]uint64, error) {
	const op = "read counters"
	if err := c.checkPort(port); err != nil {
		return nil, c.obj.fail(op, err)
	}
	if v := host.DeviceAt(c.device.Node); v != nil {
		return v.Counters(), nil
	}
	values := map[string]uint64{}
	for _, kind := range []string{"counters", "hw_counters"} {
		dir := filepath.Join(sysClass, "infiniband", c.device.Name, "ports", strconv.Itoa(port), kind)
		entries, err := os.ReadDir(dir)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return nil, c.obj.fail(op, err)
		}
		for _, e := range entries {
			text, err := readAttr(dir, e.Name())
			if err != nil {
				continue // not readable for this user
			}
			if v, err := strconv.ParseUint(text, 10, 64); err == nil && e.Name() != "lifespan" {
				values[e.Name()] = v
			}
		}
	}
	return values, nil
}
