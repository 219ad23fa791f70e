//go:build linux

package vfiouser

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Device is a model of a PCI device. One goroutine calls it.
type Device interface {
	// Regions returns the sizes of the regions that the device has, by VFIO's index.
	Regions() map[int]uint64
	// Vectors returns the number of MSI-X vectors.
	Vectors() int
	// Read handles a load, and Write a store, inside of a region. Neither keeps b.
	Read(region int, off uint64, b []byte)
	Write(region int, off uint64, b []byte)
	// Reset is a function level reset.
	Reset()
}

// Indexes of regions (enum in linux/vfio.h).
const (
	BAR0   = 0
	Config = 7

	numRegions = 9
	numIRQs    = 5
	irqMSIX    = 2
)

// Bus gives a device access to the virtual machine.
type Bus struct {
	Memory *Memory

	mu      sync.Mutex
	vectors []*os.File // eventfds, nil without
}

// Interrupt raises an MSI-X vector. It is lost if the guest has not enabled the vector.
func (b *Bus) Interrupt(vector int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if vector < len(b.vectors) && b.vectors[vector] != nil {
		var one [8]byte
		binary.NativeEndian.PutUint64(one[:], 1)
		// It does not wait, and fails only if 2^64 interrupts are pending: see checkEventfd.
		unix.Write(int(b.vectors[vector].Fd()), one[:])
	}
}

// setVectors replaces count vectors from start. files may be shorter.
func (b *Bus) setVectors(start, count int, files []*os.File) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range count {
		if old := b.vectors[start+i]; old != nil {
			old.Close()
		}
		b.vectors[start+i] = nil
		if i < len(files) {
			b.vectors[start+i] = files[i]
		}
	}
}

// Commands (docs/interop/vfio-user.rst).
const (
	cmdVersion       = 1
	cmdDMAMap        = 2
	cmdDMAUnmap      = 3
	cmdGetInfo       = 4
	cmdGetRegionInfo = 5
	cmdGetIRQInfo    = 7
	cmdSetIRQs       = 8
	cmdRegionRead    = 9
	cmdRegionWrite   = 10
	cmdReset         = 13
)

const (
	headerSize = 16

	flagReply   = 1
	flagNoReply = 1 << 4
	flagError   = 1 << 5
	typeMask    = 0xf

	maxFDs      = 16
	maxTransfer = 1 << 20
	maxMessage  = headerSize + 16 + maxTransfer
)

var le = binary.LittleEndian

// connection is a client's connection, for one device.
type connection struct {
	conn    *net.UnixConn
	bus     *Bus
	dev     Device
	version bool       // a version has been negotiated
	files   []*os.File // received with the current message
}

// Serve serves a device to a client until the client closes the connection. attach makes the device,
// which is not called after Serve has returned.
func Serve(conn *net.UnixConn, attach func(*Bus) (Device, error)) error {
	defer conn.Close()
	c := &connection{conn: conn, bus: &Bus{Memory: newMemory()}}
	defer c.bus.Memory.removeAll()
	dev, err := attach(c.bus)
	if err != nil {
		return err
	}
	c.dev = dev
	c.bus.vectors = make([]*os.File, dev.Vectors())
	defer c.bus.setVectors(0, len(c.bus.vectors), nil)
	defer c.closeFiles()
	for {
		switch err := c.message(); {
		case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET), errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			return err
		}
	}
}

// message receives a message and replies to it.
func (c *connection) message() error {
	c.closeFiles()
	var h [headerSize]byte
	if err := c.read(h[:]); err != nil {
		return err
	}
	id, cmd, size, flags := le.Uint16(h[0:]), le.Uint16(h[2:]), le.Uint32(h[4:]), le.Uint32(h[8:])
	if size < headerSize || size > maxMessage {
		return fmt.Errorf("vfio-user command %d of %d bytes: messages have %d to %d bytes", cmd, size, headerSize, maxMessage)
	}
	if flags&typeMask != 0 {
		return fmt.Errorf("vfio-user command %d with flags %#x: the client replies to no request", cmd, flags)
	}
	body := make([]byte, size-headerSize)
	if err := c.read(body); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	if !c.version && cmd != cmdVersion {
		return fmt.Errorf("vfio-user command %d before a version", cmd)
	}
	answer, err := c.handle(cmd, body)
	if flags&flagNoReply == 0 {
		if err := c.reply(id, cmd, answer, err); err != nil {
			return err
		}
	}
	if errors.Is(err, errUnsealed) { // the client gets only an errno, so that the caller must report the reason
		return err
	}
	return nil
}

// reply replies to a message.
func (c *connection) reply(id, cmd uint16, answer []byte, err error) error {
	reply := make([]byte, headerSize, headerSize+len(answer))
	le.PutUint16(reply[0:], id)
	le.PutUint16(reply[2:], cmd)
	le.PutUint32(reply[8:], flagReply)
	if err != nil {
		errno := unix.EINVAL
		errors.As(err, &errno)
		le.PutUint32(reply[8:], flagReply|flagError)
		le.PutUint32(reply[12:], uint32(errno))
	} else {
		reply = append(reply, answer...)
	}
	le.PutUint32(reply[4:], uint32(len(reply)))
	_, err = c.conn.Write(reply)
	return err
}

// read fills b, and keeps the files that it receives with it.
func (c *connection) read(b []byte) error {
	oob := make([]byte, unix.CmsgSpace(maxFDs*4))
	for len(b) > 0 {
		n, oobn, flags, _, err := c.conn.ReadMsgUnix(b, oob)
		if oobn > 0 {
			if err := c.keep(oob[:oobn]); err != nil {
				return err
			}
		}
		switch {
		case err != nil:
			return err
		case n == 0:
			return io.EOF
		case flags&unix.MSG_CTRUNC != 0:
			return errFiles
		}
		b = b[n:]
	}
	return nil
}

func (c *connection) keep(oob []byte) error {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return err
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return err
		}
		for _, fd := range fds {
			c.files = append(c.files, os.NewFile(uintptr(fd), "vfio-user"))
		}
	}
	if len(c.files) > maxFDs {
		return errFiles
	}
	return nil
}

var errFiles = fmt.Errorf("a vfio-user message with more than %d files", maxFDs)

func (c *connection) closeFiles() {
	for _, f := range c.files {
		f.Close()
	}
	c.files = nil
}

var errShort = fmt.Errorf("message is too short: %w", unix.EINVAL)

func (c *connection) handle(cmd uint16, b []byte) ([]byte, error) {
	need := map[uint16]int{
		cmdVersion: 4, cmdDMAMap: 32, cmdDMAUnmap: 24, cmdGetInfo: 4, cmdGetRegionInfo: 32, cmdGetIRQInfo: 16,
		cmdSetIRQs: 20, cmdRegionRead: 16, cmdRegionWrite: 16, cmdReset: 0,
	}
	n, ok := need[cmd]
	switch {
	case !ok:
		return nil, unix.ENOTSUP
	case len(b) < n:
		return nil, errShort
	}
	switch cmd {
	case cmdVersion:
		return c.negotiate(b)
	case cmdDMAMap:
		return nil, c.dmaMap(b)
	case cmdDMAUnmap:
		return c.dmaUnmap(b)
	case cmdGetInfo: // struct vfio_device_info
		const flags = 1<<0 | 1<<1 // RESET, PCI
		return words(16, flags, numRegions, numIRQs), nil
	case cmdGetRegionInfo: // struct vfio_region_info
		index := int(le.Uint32(b[8:]))
		if index < 0 || index >= numRegions {
			return nil, unix.EINVAL
		}
		out := words(32, 0, uint32(index), 0, 0, 0, 0, 0)
		if size := c.dev.Regions()[index]; size > 0 {
			le.PutUint32(out[4:], 1<<0|1<<1) // READ, WRITE
			le.PutUint64(out[16:], size)
		}
		return out, nil
	case cmdGetIRQInfo: // struct vfio_irq_info
		index := le.Uint32(b[8:])
		switch {
		case index >= numIRQs:
			return nil, unix.EINVAL
		case index == irqMSIX:
			return words(16, 1<<0|1<<3, index, uint32(len(c.bus.vectors))), nil // EVENTFD, NORESIZE
		}
		return words(16, 0, index, 0), nil
	case cmdSetIRQs:
		return nil, c.setIRQs(b)
	case cmdRegionRead:
		return c.regionRead(b)
	case cmdRegionWrite:
		return b[:16], c.regionWrite(b)
	}
	c.dev.Reset()
	return nil, nil
}

func words(w ...uint32) []byte {
	b := make([]byte, len(w)*4)
	for i, v := range w {
		le.PutUint32(b[i*4:], v)
	}
	return b
}

// negotiate handles VERSION: major, minor, and capabilities in JSON.
func (c *connection) negotiate(b []byte) ([]byte, error) {
	if major := le.Uint16(b); major != 0 {
		return nil, fmt.Errorf("vfio-user version %d: this is version 0: %w", major, unix.ENOTSUP)
	}
	c.version = true
	capabilities, err := json.Marshal(map[string]any{"capabilities": map[string]any{
		"max_msg_fds": maxFDs, "max_data_xfer_size": maxTransfer, "pgsizes": pageSize, "max_dma_maps": maxRegions}})
	if err != nil {
		return nil, err
	}
	out := append([]byte{0, 0, b[2], b[3]}, capabilities...)
	return append(out, 0), nil
}

// dmaMap handles DMA_MAP: argsz, flags, offset, address and size, with the file of the memory.
func (c *connection) dmaMap(b []byte) error {
	flags := le.Uint32(b[4:])
	prot := 0
	if flags&1 != 0 {
		prot |= unix.PROT_READ
	}
	if flags&2 != 0 {
		prot |= unix.PROT_WRITE
	}
	if flags&^3 != 0 || len(c.files) > 1 {
		return unix.EINVAL
	}
	var file *os.File
	if len(c.files) == 1 {
		file = c.files[0]
	}
	err := c.bus.Memory.add(le.Uint64(b[16:]), le.Uint64(b[24:]), int64(le.Uint64(b[8:])), prot, file)
	if err == nil {
		c.files = nil
	}
	return err
}

// dmaUnmap handles DMA_UNMAP: argsz, flags, address and size, which the reply repeats.
func (c *connection) dmaUnmap(b []byte) ([]byte, error) {
	const all = 1 << 1
	addr, size := le.Uint64(b[8:]), le.Uint64(b[16:])
	switch flags := le.Uint32(b[4:]); flags {
	case 0:
		return b[:24], c.bus.Memory.remove(addr, size)
	case all:
		if addr|size != 0 {
			return nil, unix.EINVAL
		}
		c.bus.Memory.removeAll()
		return b[:24], nil
	}
	return nil, unix.ENOTSUP
}

// setIRQs handles DEVICE_SET_IRQS, struct vfio_irq_set, with eventfds.
func (c *connection) setIRQs(b []byte) error {
	const (
		dataNone, dataEventfd = 1 << 0, 1 << 2
		actionTrigger         = 1 << 5
	)
	flags, index, start, count := le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint32(b[12:]), le.Uint32(b[16:])
	if index >= numIRQs {
		return unix.EINVAL
	}
	if index != irqMSIX { // the device has no others: the client disables them
		if count == 0 || flags&dataEventfd != 0 && len(c.files) == 0 {
			return nil
		}
		return unix.EINVAL
	}
	n := uint32(len(c.bus.vectors))
	if start > n || count > n-start || flags&actionTrigger == 0 {
		return unix.EINVAL
	}
	switch {
	case flags&dataNone != 0 && count == 0: // all off
		c.bus.setVectors(0, int(n), nil)
	case flags&dataEventfd != 0 && len(c.files) <= int(count):
		for _, f := range c.files {
			if err := checkEventfd(f); err != nil {
				return err
			}
		}
		c.bus.setVectors(int(start), int(count), c.files)
		c.files = nil
	default:
		return unix.EINVAL
	}
	return nil
}

// checkEventfd refuses a file that is no eventfd, and makes writes to it not wait, as Interrupt holds
// locks. Writes of QEMU do not wait either.
func checkEventfd(f *os.File) error {
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", f.Fd()))
	if err == nil && !bytes.Contains(info, []byte("\neventfd-count:")) {
		err = unix.EINVAL
	}
	if err != nil {
		return fmt.Errorf("an interrupt by a file that is no eventfd: %w", err)
	}
	return unix.SetNonblock(int(f.Fd()), true)
}

// access checks an access: offset, region, count.
func (c *connection) access(b []byte) (off uint64, region int, count uint32, err error) {
	off, region, count = le.Uint64(b), int(le.Uint32(b[8:])), le.Uint32(b[12:])
	size := c.dev.Regions()[region]
	if count > maxTransfer || off > size || uint64(count) > size-off {
		err = fmt.Errorf("access of %d bytes at %#x of region %d, which has %#x: %w", count, off, region, size, unix.EINVAL)
	}
	return off, region, count, err
}

func (c *connection) regionRead(b []byte) ([]byte, error) {
	off, region, count, err := c.access(b)
	if err != nil {
		return nil, err
	}
	out := append(make([]byte, 0, 16+count), b[:16]...)[:16+count]
	c.dev.Read(region, off, out[16:])
	return out, nil
}

func (c *connection) regionWrite(b []byte) error {
	off, region, count, err := c.access(b)
	if err != nil {
		return err
	}
	if uint32(len(b)-16) < count {
		return errShort
	}
	c.dev.Write(region, off, b[16:16+count])
	return nil
}
