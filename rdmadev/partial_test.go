//go:build linux

package rdmadev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest/starve"
)

// oneDevice returns a source with one device, rxe0.
func oneDevice(t *testing.T) Source {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"infiniband_verbs/uverbs0/ibdev":           "rxe0",
		"infiniband/rxe0/node_guid":                "5054:00ff:fe12:3456",
		"infiniband/rxe0/node_type":                "1: CA",
		"infiniband/rxe0/fw_ver":                   "1.0",
		"infiniband/rxe0/parent":                   "eth0",
		"infiniband/rxe0/ports/1/state":            "4: ACTIVE",
		"infiniband/rxe0/ports/1/phys_state":       "5: LinkUp",
		"infiniband/rxe0/ports/1/link_layer":       "Ethernet",
		"infiniband/rxe0/ports/1/pkeys/0":          "0xffff",
		"infiniband/rxe0/ports/1/counters/symbols": "1",
	} {
		path := filepath.Join(root, "class", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text+"\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return Source{Sys: root}
}

// meanwhile has change called while an attribute of rxe0 is read, which waits for it.
func meanwhile(t *testing.T, s Source, attr string, change func(device string)) {
	t.Helper()
	device := s.class("infiniband", "rxe0")
	fifo := filepath.Join(device, attr)
	if err := errors.Join(os.Remove(fifo), unix.Mkfifo(fifo, 0o644)); err != nil {
		t.Fatal(err)
	}
	changed := make(chan struct{})
	go func() {
		defer close(changed)
		f, err := os.OpenFile(fifo, os.O_WRONLY, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		os.Remove(fifo) // it is read once
		change(device)
	}()
	t.Cleanup(func() { <-changed })
}

func remove(device string) { os.RemoveAll(device) }

func rename(device string) { os.Rename(device, filepath.Join(filepath.Dir(device), "mlx5_0")) }

// TestChangedMeanwhile removes or renames a device while it is read: it is listed whole or not at all.
func TestChangedMeanwhile(t *testing.T) {
	for name, test := range map[string]struct {
		change func(string)
		names  []string
	}{
		"removed": {remove, nil},
		"renamed": {rename, []string{"mlx5_0"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := oneDevice(t)
			meanwhile(t, s, "fw_ver", test.change)
			devices, err := s.Devices()
			if err != nil || len(devices) != len(test.names) {
				t.Fatalf("%+v, %v, want %v", devices, err, test.names)
			}
			for i, d := range devices {
				if d.Name != test.names[i] || d.NodeGUID == (verbs.GUID{}) || len(d.Ports) != 1 || d.Ports[0].State != verbs.PortActive {
					t.Errorf("%+v", d)
				}
			}
		})
		t.Run("find, "+name, func(t *testing.T) {
			s := oneDevice(t)
			meanwhile(t, s, "fw_ver", test.change)
			if d, err := s.Find("rxe0"); !errors.Is(err, verbs.ErrNoDevice) {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}
}

// TestPortGoneMeanwhile removes a device while a table of its port is read: the table is no whole one.
func TestPortGoneMeanwhile(t *testing.T) {
	for attr, read := range map[string]func(Port) error{
		"ports/1/pkeys/0":          func(p Port) error { _, err := p.PKeys(); return err },
		"ports/1/counters/symbols": func(p Port) error { _, err := p.Counters(); return err },
	} {
		s := oneDevice(t)
		devices, err := s.Devices()
		if err != nil || len(devices) != 1 || read(devices[0].Ports[0]) != nil {
			t.Fatal(devices, err)
		}
		meanwhile(t, s, attr, remove)
		if err := read(devices[0].Ports[0]); !errors.Is(err, verbs.ErrNoDevice) {
			t.Errorf("%s: %v", attr, err)
		}
	}
}

// TestOutOfFiles lists a device while the process runs out of descriptors now and then: it is listed
// whole, or not at all with an error, as a watch would report it as removed, or its port as down.
func TestOutOfFiles(t *testing.T) {
	s := oneDevice(t)
	want, err := s.Devices()
	if err != nil || len(want) != 1 {
		t.Fatal(want, err)
	}
	starve.Files(t, func() error {
		devices, err := s.Devices()
		if err == nil && !reflect.DeepEqual(devices, want) {
			err = fmt.Errorf("%+v, want %+v", devices, want)
		}
		return err
	})
}
