package uverbs

import (
	"os"
	"path/filepath"
	"strconv"
)

// Counters returns the statistics that the device keeps of a port, by the names
// that sysfs gives them: what its driver counts ("sent_pkts", "rcvd_pkts" on
// rxe) and, where there are any, the standard ones ("port_xmit_data").
// rdma-statistic(8) shows the same. The kernel may repeat what it said in the last
// 10 ms.
func (c *Context) Counters(port int) (map[string]uint64, error) {
	const op = "read counters"
	if err := c.checkPort(port); err != nil {
		return nil, c.obj.fail(op, err)
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
				continue // not for everybody to read
			}
			if v, err := strconv.ParseUint(text, 10, 64); err == nil && e.Name() != "lifespan" {
				values[e.Name()] = v
			}
		}
	}
	return values, nil
}
