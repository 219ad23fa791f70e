package uverbs

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strconv"

	"github.com/goverbs/verbs/internal/host"
)

// Counters returns the statistics of a port by their names in sysfs, as rdma-statistic(8): those of
// the driver ("sent_pkts" on rxe) and the standard ones ("port_xmit_data"). They may be 10 ms old.
func (c *Context) Counters(port int) (map[string]uint64, error) {
	const op = "read counters"
	values := map[string]uint64{}
	err := c.readPort(port, func(folder string) error {
		for _, kind := range []string{"counters", "hw_counters"} {
			dir := filepath.Join(folder, kind)
			names, err := host.ListAttrs(dir)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			for _, name := range names {
				text, err := readAttr(dir, name)
				if host.TooManyFiles(err) {
					return err
				}
				if err != nil {
					continue // not readable for this user
				}
				if v, err := strconv.ParseUint(text, 10, 64); err == nil && name != "lifespan" {
					values[name] = v
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, c.obj.fail(op, err)
	}
	return values, nil
}
