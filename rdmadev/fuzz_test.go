package rdmadev

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/goverbs/verbs/internal/nldev"
)

// FuzzSysfs reads a device whose attributes in sysfs are anything: what cannot be read is an error of the
// device or of its port.
func FuzzSysfs(f *testing.F) {
	f.Add("rate", "100 Gb/sec (4X EDR)", "1", "0x7fff", "17", binary.NativeEndian.AppendUint16(nil, 2))
	f.Add("node_desc", "x", "3", "0", "0", append(binary.NativeEndian.AppendUint16(nil, 2), make([]byte, 26)...))
	f.Add("rate", "NaN Gb/sec", "2", "1", "1", []byte{})
	f.Add("state", "4: ACTIVE", "0", "65536", "-1", append(binary.NativeEndian.AppendUint16(nil, 10), make([]byte, 26)...))
	f.Add("lid", "-1", "4294967296", "", "N/A", []byte{})
	f.Add("gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001", "-1", "0", "18446744073709551616", []byte{2})
	f.Fuzz(func(t *testing.T, attribute, text, index, key, counter string, address []byte) {
		if !filepath.IsLocal(attribute) || !filepath.IsLocal(index) || filepath.Base(index) != index {
			return
		}
		sys := t.TempDir()
		port := filepath.Join(sys, "class/infiniband/dev0/ports/1")
		hardware := filepath.Join(sys, "hardware")
		for name, value := range map[string]string{
			filepath.Join(port, attribute):       text,
			filepath.Join(port, "pkeys", index):  key,
			filepath.Join(port, "gids", index):   text,
			filepath.Join(port, "counters/any"):  counter,
			filepath.Join(hardware, "numa_node"): text,
			filepath.Join(hardware, "vendor"):    key,
		} {
			if os.MkdirAll(filepath.Dir(name), 0o755) != nil || os.WriteFile(name, []byte(value), 0o644) != nil {
				return // no name of a file
			}
		}
		if err := os.Symlink(hardware, filepath.Join(sys, "class/infiniband/dev0/device")); err != nil {
			t.Fatal(err)
		}
		d, err := Source{Sys: sys}.Find("dev0")
		if err != nil || len(d.Ports) != 1 {
			t.Fatalf("%+v, %v", d, err)
		}
		p := d.Ports[0]
		if p.Rate < 0 {
			t.Errorf("%s %q: rate %d", attribute, text, p.Rate)
		}
		if keys, _ := p.PKeys(); len(keys) > 1<<16+1 || len(keys) > 0 && keys[len(keys)-1] == 0 {
			t.Errorf("%q is %q: %d keys", index, key, len(keys))
		}
		p.GIDs()
		if counters, err := p.Counters(); len(counters) > 1 || len(counters) == 1 && err != nil {
			t.Errorf("%q: %+v, %v", counter, counters, err)
		}
		family := binary.NativeEndian.Uint16(append(address, 0, 0))
		if a := sockaddr(nldev.Value(address)); a.IsValid() != (len(address) >= 28 && (family == 2 || family == 10)) {
			t.Errorf("% x is %v", address, a)
		}
	})
}
