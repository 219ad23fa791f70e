package kernel

import (
	"sync"
	"syscall"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/soft/internal/uapi"
)

type file struct {
	host.Unsupported
	device *Device
	num    uint32 // on the device

	mu         sync.RWMutex
	hasContext bool
	removed    bool // the device has been removed
	closed     bool
	ending     bool               // destroyAll is running
	ended      sync.Cond          // it has ended
	objects    uapi.Table[object] // by handle
	created    uint64             // number of objects that have been created
	mappings   map[int64][]byte
	nextOffset int64
	eventFiles map[*eventFile]struct{}
	async      *eventFile // for events of objects; nil before the first
}

// startRemove makes all commands fail that do not destroy objects.
func (f *file) startRemove() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removed = true
}

// remove ends the file after the removal of the device. Asynchronous events end with
// EventDeviceFatal, which the engine raises.
func (f *file) remove() {
	f.destroyAll()
	f.mu.RLock()
	defer f.mu.RUnlock()
	for e := range f.eventFiles {
		if e.size == compEventSize {
			e.end()
		}
	}
}

// Close implements [host.File]: it destroys all objects.
func (f *file) Close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.destroyAll()
	f.device.closed(f)
}

func (f *file) addEventFile(e *eventFile) syscall.Errno {
	f.mu.Lock()
	defer f.mu.Unlock()
	if errno := f.usable(); errno != 0 {
		return errno
	}
	f.eventFiles[e] = struct{}{}
	if e.size == asyncEventSize {
		if f.async == nil {
			f.async = e
		}
		d := f.device
		d.eventMu.Lock()
		defer d.eventMu.Unlock()
		d.async[e] = struct{}{}
	}
	return 0
}

func (f *file) removeEventFile(e *eventFile) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.eventFiles, e)
	d := f.device
	d.eventMu.Lock()
	defer d.eventMu.Unlock()
	delete(d.async, e)
}

// asyncFile returns the file for asynchronous events of an object: an attribute's, or the file's
// default (ib_uverbs_get_async_event).
func (f *file) asyncFile(c *call, attr uint16) (*eventFile, syscall.Errno) {
	if c.attr(attr) != nil {
		return f.eventFileAt(int(c.handle(attr)), asyncEventSize)
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.async, 0
}

func allocAsync(c *call) syscall.Errno {
	fd, errno := c.file.newEventFile(asyncEventSize)
	if errno == 0 {
		c.setHandle(abi.UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, uint32(fd))
	}
	return errno
}
