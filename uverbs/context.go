package uverbs

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/provider"
)

// Context is an open device. Objects made from it are closed before it.
type Context struct {
	*contextCore
	obj *object
}

// contextCore is the part of a Context that its objects use.
type contextCore struct {
	device        Device
	file          sys.File
	driver        provider.Driver
	dev           *provider.Device
	driverContext provider.Context // the driver's
	async         host.EventFile
	loss          host.EventFile // see watch
	watched       chan struct{}  // closed when watch has ended
	lost          atomic.Bool
	vectors       uint32

	asyncSem chan struct{} // has a token while a goroutine reads async
	overruns overruns

	lastID   atomic.Uint64 // of the registry
	registry *registry
}

// Open opens the device. It fails with [verbs.ErrNoDevice] if the device has gone, also if another has its node.
func (d Device) Open() (*Context, error) {
	if d.NodeErr != nil {
		return nil, d.fail(d.NodeErr)
	}
	fd, err := host.Open(d.Node)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENXIO) || errors.Is(err, syscall.ENODEV) {
		err = fmt.Errorf("%w: %w", verbs.ErrNoDevice, err)
	}
	if err != nil {
		return nil, d.fail(err)
	}
	c, err := d.open(fd, false)
	if err != nil {
		return nil, d.fail(err)
	}
	// The kernel gives the number of a device's node to the next one when the device has gone.
	if guid := c.dev.Attr.NodeGUID; guid != d.GUID && d.GUID != (verbs.GUID{}) {
		c.Close()
		return nil, d.fail(fmt.Errorf("%w: its node is that of a device with GUID %v now, not %v: find it again", verbs.ErrNoDevice, guid, d.GUID))
	}
	return c, nil
}

func (d Device) fail(err error) error {
	h := hint("open", err)
	if h != "" {
		h = host.Remedy(d.Node, h)
	}
	return &verbs.Error{Op: "open", Device: d.Name, Object: d.Node, Err: explain(err), Hint: h}
}

// open makes a Context of an open device file, which already has a kernel context if it
// is imported. It takes over the file, and closes it if it fails.
func (d Device) open(fd int, imported bool) (*Context, error) {
	core := &contextCore{device: d, file: sys.File{FD: fd}, vectors: 1, asyncSem: make(chan struct{}, 1), watched: make(chan struct{}), registry: &registry{entries: map[uint64]entry{}}}
	if err := core.setup(imported); err != nil {
		host.Close(fd)
		return nil, err
	}
	// Contexts of one file share its objects, so their IDs must differ.
	core.lastID.Store(rand.Uint64() &^ 0xffffffff)
	c := &Context{contextCore: core}
	c.obj = newObject(d.Name, objectName{}, func() error {
		core.async.Close()
		core.loss.Close()
		<-core.watched // it looks at queues, of which none is open any more
		core.driverContext.Release()
		host.Close(fd) // the file is closed even if this fails
		return nil
	})
	addCleanup(c, c.obj)
	go core.watch()
	return c, nil
}

// setup finds the driver and makes its part of the context.
func (c *contextCore) setup(imported bool) (err error) {
	if c.driver, err = findDriver(c.file.FD); err != nil {
		return err
	}
	c.file.Driver = c.driver.ID()
	c.dev = &provider.Device{FD: c.file.FD, Driver: c.driver.ID(), IWARP: c.device.iwarp}
	if !imported {
		c.driverContext, err = c.driver.GetContext(c.dev, c.getContext)
	} else if err = c.queryAttrs(); err == nil {
		c.driverContext, err = c.driver.ImportContext(c.dev, c.queryContext)
	}
	if err != nil {
		return err
	}
	// QPs and SRQs report events to the first of these files, CQs to the second, and the device to both. They
	// are named as objects are made: what names none reports to the first that was made of the device file
	// (ufile->default_async_file), which is another Context's if this one is imported.
	if c.async, err = allocAsync(c.file); err == nil {
		if c.loss, err = allocAsync(c.file); err == nil {
			c.loss.Relay()
			return nil
		}
		c.async.Close()
	}
	c.driverContext.Release()
	return err
}

func allocAsync(f sys.File) (host.EventFile, error) {
	var fd uint32
	err := f.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_ASYNC_EVENT, Method: abi.UVERBS_METHOD_ASYNC_EVENT_ALLOC, Attrs: []sys.Attr{
		sys.New(abi.UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, &fd),
	}})
	if err != nil {
		return nil, err
	}
	return host.NewEventFile(int(fd))
}

// Device returns the device that was opened.
func (c *Context) Device() Device { return c.device }

// Driver returns the name of the device's driver: "rxe".
func (c *Context) Driver() string { return c.driver.Name() }

// CompVectors returns the number of completion vectors, see [CQOptions].
func (c *Context) CompVectors() int { return int(c.vectors) }

// SetLogger sets where objects are reported, at level Warn, that became unreachable without Close,
// and failures to destroy them; nil disables it.
func (c *Context) SetLogger(l *slog.Logger) { c.obj.tree.log.Store(l) }

// Close closes the device. It fails while objects made from it are open.
func (c *Context) Close() error {
	if c == nil {
		return verbs.ErrClosed
	}
	return c.obj.close()
}

// kind is a kind of kernel object, for destroy.
type kind struct {
	object, method, handle uint16 // UVERBS_OBJECT_*, UVERBS_METHOD_*_DESTROY, UVERBS_ATTR_DESTROY_*_HANDLE
	events                 uint16 // UVERBS_ATTR_DESTROY_*_RESP, or 0
	size                   int    // of events, struct ib_uverbs_destroy_*_resp
}

var (
	kindAH  = kind{abi.UVERBS_OBJECT_AH, abi.UVERBS_METHOD_AH_DESTROY, abi.UVERBS_ATTR_DESTROY_AH_HANDLE, 0, 0}
	kindCQ  = kind{abi.UVERBS_OBJECT_CQ, abi.UVERBS_METHOD_CQ_DESTROY, abi.UVERBS_ATTR_DESTROY_CQ_HANDLE, abi.UVERBS_ATTR_DESTROY_CQ_RESP, 8}
	kindMR  = kind{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_MR_DESTROY, abi.UVERBS_ATTR_DESTROY_MR_HANDLE, 0, 0}
	kindMW  = kind{abi.UVERBS_OBJECT_MW, abi.UVERBS_METHOD_MW_DESTROY, abi.UVERBS_ATTR_DESTROY_MW_HANDLE, 0, 0}
	kindPD  = kind{abi.UVERBS_OBJECT_PD, abi.UVERBS_METHOD_PD_DESTROY, abi.UVERBS_ATTR_DESTROY_PD_HANDLE, 0, 0}
	kindQP  = kind{abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_DESTROY, abi.UVERBS_ATTR_DESTROY_QP_HANDLE, abi.UVERBS_ATTR_DESTROY_QP_RESP, 4}
	kindSRQ = kind{abi.UVERBS_OBJECT_SRQ, abi.UVERBS_METHOD_SRQ_DESTROY, abi.UVERBS_ATTR_DESTROY_SRQ_HANDLE, abi.UVERBS_ATTR_DESTROY_SRQ_RESP, 4}
)

// destroy destroys a kernel object. The kernel insists on returning the number of its events, so
// that libibverbs can wait until the program has acknowledged them. Here events name objects by
// numbers that are never reused, so nothing has to wait.
func (c *contextCore) destroy(k kind, handle uint32) error {
	var events [8]byte
	return c.file.Ioctl(sys.Call{Object: k.object, Method: k.method, Attrs: []sys.Attr{
		sys.Handle(k.handle, handle),
		sys.OutBytes(k.events, events[:k.size]),
	}})
}
