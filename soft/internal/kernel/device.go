package kernel

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/internal/host"
)

// Device is the uverbs device of a device of the engine.
type Device struct {
	engine     *engine.Device
	interfaces map[netip.Addr]int // indexes of network interfaces by their addresses

	mu      sync.Mutex
	removed bool
	files   map[*file]struct{}

	lastNum atomic.Uint32 // of objects and files

	eventMu sync.Mutex // taken by callbacks of the engine
	async   map[*eventFile]struct{}
}

// NewDevice returns the device, and sets the engine's OnEvent.
func NewDevice(e *engine.Device) *Device {
	d := &Device{engine: e, interfaces: interfaces(), files: map[*file]struct{}{}, async: map[*eventFile]struct{}{}}
	e.OnEvent(d.raise)
	return d
}

func interfaces() map[netip.Addr]int {
	index := map[netip.Addr]int{}
	all, _ := host.Interfaces()
	for _, ifi := range all {
		for _, p := range ifi.Prefixes {
			index[p.Addr().Unmap()] = ifi.Index
		}
	}
	return index
}

// Open opens a file of the device. It fails with ENODEV after Remove.
func (d *Device) Open() (host.File, syscall.Errno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.removed {
		return nil, syscall.ENODEV
	}
	f := &file{device: d, num: d.lastNum.Add(1), mappings: map[int64][]byte{}, eventFiles: map[*eventFile]struct{}{}}
	f.ended.L = &f.mu
	d.files[f] = struct{}{}
	return f, 0
}

func (d *Device) closed(f *file) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.files, f)
}

// raise reports an event of the device or its port to all files of asynchronous events.
func (d *Device) raise(t verbs.AsyncEventType) {
	e := event{element: 1, typ: uint32(t)} // the port
	if t == verbs.EventDeviceFatal {
		e.element = 0
	}
	d.eventMu.Lock()
	defer d.eventMu.Unlock()
	for f := range d.async {
		f.add(e)
	}
}

// Remove removes the device, and the engine's device, as ib_uverbs_remove_one does: commands of
// open files fail with EIO, except those that destroy objects, which succeed; completion channels
// fail with EIO; and [verbs.EventDeviceFatal] is raised. It may be called again.
func (d *Device) Remove() {
	d.mu.Lock()
	d.removed = true
	var files []*file
	for f := range d.files {
		files = append(files, f)
	}
	d.mu.Unlock()
	for _, f := range files {
		f.startRemove()
	}
	d.engine.Remove()
	for _, f := range files {
		f.remove()
	}
}
