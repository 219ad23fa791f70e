package lifetime

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmadev"
	"github.com/goverbs/verbs/uverbs"
)

// meanwhile calls each of read again and again while change is called, 100 times with -short and 400 without.
func meanwhile(t *testing.T, change func(i int), read map[string]func() error) {
	var reading sync.WaitGroup
	ended := make(chan struct{})
	for name, f := range read {
		reading.Go(func() {
			for n := 0; ; n++ {
				if err := f(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				select {
				case <-ended:
					t.Logf("%s: %d times", name, n)
					return
				default:
				}
			}
		})
	}
	changes := 400
	if testing.Short() {
		changes = 100
	}
	for i := range changes {
		change(i)
	}
	close(ended)
	reading.Wait()
}

// whole fails if a device is not read whole.
func whole(devices []rdmadev.Device, err error) error {
	for _, d := range devices {
		if d.NodeGUID == (verbs.GUID{}) || d.Type == 0 || len(d.Ports) != 1 || d.Ports[0].State == 0 {
			return fmt.Errorf("half of a device: %+v", d)
		}
	}
	return err
}

// TestListWhileRemoved lists and finds devices while another comes and goes: also one that is removed between two
// reads, or while one of its attributes is open, is no error, and no device is read in part.
func TestListWhileRemoved(t *testing.T) {
	labtest.RequireKernel(t)
	meanwhile(t, func(int) {
		labtest.Check(t, netlink.RdmaLinkAdd("going0", "siw", labtest.LinkOf(labtest.RXE)), netlink.RdmaLinkDel("going0"))
	}, map[string]func() error{
		"list": func() error { _, err := uverbs.Devices(); return err },
		"find": func() error { _, err := uverbs.Find(labtest.RXE); return err },
		"read": func() error { return whole(rdmadev.Devices()) },
	})
}

// TestFindWhileRenamed finds a device by its number, and its number, while it is renamed.
func TestFindWhileRenamed(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Check(t, netlink.RdmaLinkAdd("renamed0", "siw", labtest.LinkOf(labtest.RXE)))
	t.Cleanup(func() { labtest.Check(t, netlink.RdmaLinkDel("renamed0")) })
	device := labtest.Must(uverbs.Find("renamed0"))(t)
	index := labtest.Must(device.Index())(t)
	names := []string{"renamed0", "renamed1"}
	meanwhile(t, func(i int) {
		d := labtest.Must(rdmadev.Find(names[i%2]))(t)
		labtest.Check(t, d.Rename(names[1-i%2]))
		time.Sleep(10 * time.Millisecond) // a reading that begins again with each new name would never end
	}, map[string]func() error{
		"find number": func() error {
			d, err := uverbs.FindIndex(index)
			if err == nil && d.GUID != device.GUID {
				err = fmt.Errorf("found %+v", d)
			}
			return err
		},
		"number": func() error {
			got, err := device.Index()
			if err == nil && got != index {
				err = fmt.Errorf("number %d, was %d", got, index)
			}
			return err
		},
	})
}

// TestOpenAnother opens a device by a node that is another's now: the kernel gives its number to the next device.
func TestOpenAnother(t *testing.T) {
	labtest.EachClean(t, func(t *testing.T, device string) {
		d := labtest.Must(uverbs.Find(device))(t)
		d.GUID[7]++
		if ctx, err := d.Open(); !errors.Is(err, verbs.ErrNoDevice) {
			t.Errorf("%v", err)
			ctx.Close()
		}
	})
}
