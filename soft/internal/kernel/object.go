package kernel

import (
	"slices"
	"syscall"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/engine"
)

// object is an object of a file that commands name by its handle. Except value, its fields are
// guarded by the file's mu.
type object struct {
	kind    uint16 // UVERBS_OBJECT_*
	value   value
	parents []*object
	users   int  // objects that are made of this one
	dying   bool // it is being destroyed
	gone    bool // destroyed by the removal of the device, except the handle
	created uint64
	num     uint32 // on the device

	comp, async eventSource
	mappings    []int64 // offsets of queues that may not have been mapped
}

// value is an object of the engine, or a *qp.
type value interface{ Destroy() error }

func errnoOf(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	if errno, ok := err.(syscall.Errno); ok {
		return errno
	}
	return syscall.EIO
}

// usable returns an error number if the file has no context or the device has been removed. The
// caller holds mu.
func (f *file) usable() syscall.Errno {
	switch {
	case f.removed || f.closed:
		return syscall.EIO
	case !f.hasContext:
		return syscall.EINVAL
	}
	return 0
}

func (f *file) lookup(kind uint16, handle uint32) (*object, syscall.Errno) {
	if errno := f.usable(); errno != 0 {
		return nil, errno
	}
	o := f.objects.Get(handle)
	switch {
	case o == nil:
		return nil, syscall.ENOENT
	case o.kind != kind:
		return nil, syscall.EINVAL
	case o.dying:
		return nil, syscall.EBUSY
	}
	return o, 0
}

// get returns the engine's object of a handle. It may be destroyed meanwhile, after which the
// engine refuses to use it.
func get[T any](f *file, kind uint16, handle uint32) (v T, errno syscall.Errno) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	o, errno := f.lookup(kind, handle)
	if errno != 0 {
		return v, errno
	}
	return any(o.value).(T), 0
}

type ref struct {
	kind   uint16
	handle uint32
}

// create makes an object of others, which cannot be destroyed before it. It destroys the object if
// respond cannot return the handle.
func create[T value](f *file, kind uint16, of []ref, make func(o *object, parents []*object) (T, error),
	respond func(o *object, v T, handle uint32) syscall.Errno) syscall.Errno {
	parents, errno := f.hold(of)
	if errno != 0 {
		return errno
	}
	o := &object{kind: kind, parents: parents}
	v, err := make(o, parents)
	if err != nil {
		f.release(o)
		return errnoOf(err)
	}
	o.value = v
	handle, errno := f.insert(o)
	if errno != 0 {
		v.Destroy()
		f.release(o)
		return errno
	}
	if errno = respond(o, v, handle); errno != 0 {
		f.destroy(kind, handle)
	}
	return errno
}

// hold makes users of objects, or of none.
func (f *file) hold(of []ref) (held []*object, errno syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if errno := f.usable(); errno != 0 {
		return nil, errno
	}
	for _, r := range of {
		o, errno := f.lookup(r.kind, r.handle)
		if errno != 0 {
			f.unhold(held)
			return nil, errno
		}
		o.users++
		held = append(held, o)
	}
	return held, 0
}

func (f *file) unhold(held []*object) {
	for _, o := range held {
		o.users--
	}
}

// insert assigns the lowest free handle to the object, as the kernel does.
func (f *file) insert(o *object) (uint32, syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if errno := f.usable(); errno != 0 {
		return 0, errno
	}
	f.created++
	o.created, o.num = f.created, f.device.lastNum.Add(1)
	return f.objects.Add(o), 0
}

// release releases what a destroyed object, or one that was not made, used.
func (f *file) release(o *object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.releaseLocked(o)
}

func (f *file) releaseLocked(o *object) {
	f.unhold(o.parents)
	o.parents = nil
	for _, offset := range o.mappings {
		delete(f.mappings, offset)
	}
	o.mappings = nil
}

// destroy destroys an object. It fails with EBUSY if others are made of it. While the device is
// removed, it waits for that, as uobj_destroy does.
func (f *file) destroy(kind uint16, handle uint32) (*object, syscall.Errno) {
	o, removed, errno := f.startDestroy(kind, handle)
	if errno != 0 {
		return nil, errno
	}
	if q, ok := o.value.(*qp); ok && removed {
		q.detachAll() // the program cannot any more
	}
	if !o.gone {
		if err := o.value.Destroy(); err != nil {
			f.mu.Lock()
			o.dying = false
			f.mu.Unlock()
			return nil, errnoOf(err)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects.Remove(handle)
	f.releaseLocked(o)
	return o, 0
}

// startDestroy marks an object as dying. It reports whether the device has been removed.
func (f *file) startDestroy(kind uint16, handle uint32) (o *object, removed bool, errno syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.ending {
		f.ended.Wait()
	}
	o = f.objects.Get(handle)
	switch {
	case !f.hasContext:
		return nil, false, syscall.EINVAL
	case o == nil:
		return nil, false, syscall.ENOENT
	case o.kind != kind:
		return nil, false, syscall.EINVAL
	case o.dying || o.users > 0:
		return nil, false, syscall.EBUSY
	}
	o.dying = true
	return o, f.removed, 0
}

// destroyAll destroys all objects, except their handles.
func (f *file) destroyAll() {
	f.setEnding(true)
	defer f.setEnding(false)
	for {
		all := f.destroyable()
		done := 0
		for _, o := range all {
			if q, ok := o.value.(*qp); ok {
				q.detachAll()
			}
			if o.value.Destroy() == nil {
				f.mu.Lock()
				o.gone = true
				f.releaseLocked(o)
				f.mu.Unlock()
				done++
			}
		}
		f.mu.Lock()
		for _, o := range all {
			o.dying = false
		}
		f.mu.Unlock()
		if done == 0 {
			return
		}
	}
}

func (f *file) setEnding(ending bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ending = ending
	f.ended.Broadcast()
}

// destroyable returns the objects that are not in use, newest first, marked as dying.
func (f *file) destroyable() (all []*object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.objects.Values {
		if o != nil && o.users == 0 && !o.dying && !o.gone {
			o.dying = true
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b *object) int { return int(int64(b.created - a.created)) })
	return all
}

// destroyMethod returns the method that destroys objects of a kind. respond, if not nil, returns
// its response.
func destroyMethod(kind, handleAttr, respAttr uint16, respond func(*object) []byte) method {
	m := method{specs: []spec{{id: handleAttr, kind: handleIn}}}
	if respond != nil {
		m.specs = append(m.specs, spec{id: respAttr, kind: bytesOut, size: len(respond(new(object)))})
	}
	m.run = func(c *call) syscall.Errno {
		o, errno := c.file.destroy(kind, c.handle(handleAttr))
		if errno == 0 && respond != nil {
			errno = c.put(respAttr, respond(o))
		}
		return errno
	}
	return m
}

var destroyMethods = map[methodID]method{
	{abi.UVERBS_OBJECT_PD, abi.UVERBS_METHOD_PD_DESTROY}: destroyMethod(abi.UVERBS_OBJECT_PD, abi.UVERBS_ATTR_DESTROY_PD_HANDLE, 0, nil),
	{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_MR_DESTROY}: destroyMethod(abi.UVERBS_OBJECT_MR, abi.UVERBS_ATTR_DESTROY_MR_HANDLE, 0, nil),
	{abi.UVERBS_OBJECT_MW, abi.UVERBS_METHOD_MW_DESTROY}: destroyMethod(abi.UVERBS_OBJECT_MW, abi.UVERBS_ATTR_DESTROY_MW_HANDLE, 0, nil),
	{abi.UVERBS_OBJECT_AH, abi.UVERBS_METHOD_AH_DESTROY}: destroyMethod(abi.UVERBS_OBJECT_AH, abi.UVERBS_ATTR_DESTROY_AH_HANDLE, 0, nil),
}

const pageSize = 4096

// offer offers the memory of a queue for a mapping, until it has been mapped or the object is
// destroyed (rxe_create_mmap_info).
func (f *file) offer(o *object, r *engine.Ring) abi.Mminfo {
	mem := r.Bytes()
	f.mu.Lock()
	defer f.mu.Unlock()
	info := abi.Mminfo{Offset: uint64(f.nextOffset), Size: uint32(len(mem))}
	f.mappings[f.nextOffset] = mem
	o.mappings = append(o.mappings, f.nextOffset)
	f.nextOffset += (int64(len(mem)) + pageSize - 1) &^ (pageSize - 1)
	return info
}

// Mmap implements [host.File] (rxe_mmap).
func (f *file) Mmap(offset int64, length int) ([]byte, syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if errno := f.usable(); errno != 0 {
		return nil, errno
	}
	mem, ok := f.mappings[offset]
	if !ok || length <= 0 || length > len(mem) {
		return nil, syscall.EINVAL
	}
	delete(f.mappings, offset)
	return mem[:length:length], 0
}
