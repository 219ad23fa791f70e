//go:build linux

package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// plug serves the machine's adapters and plugs them in.
func (m *machine) plug() error {
	if len(m.opt.NICs) == 0 {
		return nil
	}
	q, err := dialQMP(filepath.Join(m.dir, qmpSocket))
	if err != nil {
		return err
	}
	defer q.conn.Close()
	// When QEMU restores a machine, the state of the slots would hide adapters that were plugged in
	// earlier.
	if _, err := q.await("query-status", running); err != nil {
		return err
	}
	record, err := recorder(m.opt)
	if err != nil {
		return err
	}
	for i := range m.opt.NICs {
		p := planAdapter(m.opt.NICs, i, max(m.opt.number, 1), m.opt.AdapterWire, record)
		path := filepath.Join(m.dir, fmt.Sprintf("nic%d", i))
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return err
		}
		m.copiers.Go(func() {
			if err := serveAdapter(context.Background(), l, p); err != nil && !errors.Is(err, net.ErrClosed) {
				fmt.Fprintf(os.Stderr, "lab: %s: %v\n", adapterName(m.opt.NICs, i), err)
			}
		})
		m.copiers.Go(func() { // QEMU may end before it connects
			<-m.gone
			l.Close()
		})
		if _, err := q.do("device_add", map[string]any{
			"driver": "vfio-user-pci", "id": fmt.Sprintf("nic%d", i), "bus": fmt.Sprintf("slot%d", i),
			"socket": map[string]any{"type": "unix", "path": path},
		}); err != nil {
			return err
		}
	}
	return nil
}
