package uverbs

import (
	"log/slog"
	"math/rand/v2"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/provider"
	"github.com/goverbs/verbs/provider/rxe"
	"github.com/goverbs/verbs/provider/siw"
)

// drivers are the kernel drivers this package can drive.
var drivers = []provider.Driver{rxe.Driver{}, siw.Driver{}}

// Context is an open device. Close it after everything made from it.
type Context struct {
	*contextCore
	obj *object
}

// contextCore is what a context's children need of it.
type contextCore struct {
	device  Device
	file    sys.File
	driver  provider.Driver
	async   *sys.EventFile
	vectors uint32
	maxMsg  uint32 // bytes, of port 1: ports of a device do not differ
	mtu     uint32 // bytes
	caps    uint64 // enum ib_uverbs_device_cap_flags
	odp     uint64 // general on-demand paging capabilities

	asyncTurn chan struct{} // held by whoever reads async

	lastID   atomic.Uint64 // in the registry
	registry *registry
}

// Open opens the device.
func (d Device) Open() (*Context, error) {
	if d.NodeErr != nil {
		return nil, d.fail(d.NodeErr)
	}
	fd, err := unix.Open(d.Node, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, d.fail(err)
	}
	file, driver, vectors, err := getContext(fd)
	if err != nil {
		unix.Close(fd)
		return nil, d.fail(err)
	}
	return d.open(file, driver, vectors)
}

func (d Device) fail(err error) error {
	return &verbs.Error{Op: "open", Device: d.Name, Object: d.Node, Err: err, Hint: hint("open", err)}
}

// open makes a context of a file that the kernel has one for. It takes over
// the file.
func (d Device) open(file sys.File, driver provider.Driver, vectors uint32) (*Context, error) {
	async, err := allocAsync(file)
	if err != nil {
		unix.Close(file.FD)
		return nil, d.fail(err)
	}
	core := &contextCore{
		device: d, file: file, driver: driver, vectors: vectors, async: async,
		asyncTurn: make(chan struct{}, 1),
	}
	// Contexts of one file share its objects, so their numbers must differ.
	core.lastID.Store(rand.Uint64() &^ 0xffffffff)
	c := &Context{contextCore: core}
	c.obj = newObject(d.Name, name{}, func() error {
		core.registry.close()
		async.Close()
		unix.Close(file.FD) // which is closed even if this fails
		return nil
	})
	core.registry = newRegistry(c.obj.tree)
	closeUnreachable(c, c.obj)
	attr, err := c.QueryDevice()
	if err != nil {
		c.Close()
		return nil, err
	}
	port, err := c.QueryPort(1)
	if err != nil {
		c.Close()
		return nil, err
	}
	core.caps, core.odp = attr.CapFlags, attr.ODP.General
	core.maxMsg, core.mtu = uint32(port.MaxMessage), uint32(port.ActiveMTU.Bytes())
	return c, nil
}

// getContext makes the kernel's context. Every ioctl names the driver it is
// meant for, and is refused with EINVAL by others: so the first driver that
// is not refused is the device's.
func getContext(fd int) (sys.File, provider.Driver, uint32, error) {
	for _, d := range drivers {
		f := sys.File{FD: fd, Driver: d.ID()}
		var vectors uint32
		err := d.GetContext(func(uhw provider.UHW) error {
			return f.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_DEVICE, Method: abi.UVERBS_METHOD_GET_CONTEXT, Attrs: []sys.Attr{
				sys.Out(abi.UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, &vectors),
				sys.OutBytes(abi.UVERBS_ATTR_UHW_OUT, uhw.Out),
			}})
		})
		if err != unix.EINVAL {
			return f, d, vectors, err
		}
	}
	return sys.File{}, nil, 0, verbs.ErrNoDriver
}

func allocAsync(f sys.File) (*sys.EventFile, error) {
	var fd uint32
	err := f.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_ASYNC_EVENT, Method: abi.UVERBS_METHOD_ASYNC_EVENT_ALLOC, Attrs: []sys.Attr{
		sys.New(abi.UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, &fd),
	}})
	if err != nil {
		return nil, err
	}
	return sys.NewEventFile(int(fd), "uverbs async events")
}

// Device is what was opened.
func (c *Context) Device() Device { return c.device }

// Driver is the name of the kernel's driver: "rxe".
func (c *Context) Driver() string { return c.driver.Name() }

// CompVectors is the number of completion vectors, see [CQOptions].
func (c *Context) CompVectors() int { return int(c.vectors) }

// SetLogger sets where the context logs, at level Warn: objects that became unreachable
// without being closed, and failures to destroy them. Nil logs nothing.
func (c *Context) SetLogger(l *slog.Logger) { c.obj.tree.log.Store(l) }

// Close closes the device. It fails with [verbs.ErrInUse] while objects made from it
// are open.
func (c *Context) Close() error { return c.obj.close() }

func (c *contextCore) provider() provider.Device {
	return provider.Device{FD: c.file.FD, Driver: c.driver.ID(), MaxMessage: c.maxMsg, MTU: c.mtu, Caps: c.caps}
}

// destroy runs a method that destroys an object and reports how many events
// it had. Those are dropped with it: nobody waits for them to be fetched.
func (c *contextCore) destroy(object, method, attr, respAttr uint16, handle uint32, resp []byte) error {
	return c.file.Ioctl(sys.Call{Object: object, Method: method, Attrs: []sys.Attr{
		sys.Handle(attr, handle),
		sys.OutBytes(respAttr, resp),
	}})
}
