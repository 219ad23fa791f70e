package providertest

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// Request returns the private part that the driver passes, as the kernel's structure. It panics if it has
// another length: kernel drivers differ in what they do with that, so drivers must pass exact ones.
func Request[T any](u provider.UHW) (v T) {
	b := mmap.Bytes(&v)
	if len(u.In) != len(b) {
		panic(fmt.Sprintf("the driver's private part has %d bytes, and %T has %d", len(u.In), v, len(b)))
	}
	copy(b, u.In)
	return v
}

// Answer writes the kernel driver's private part of the answer. It panics if the driver expects one of
// another length.
func Answer[T any](u provider.UHW, v T) {
	b := mmap.Bytes(&v)
	if len(u.Out) != len(b) {
		panic(fmt.Sprintf("the driver expects an answer of %d bytes, and %T has %d", len(u.Out), v, len(b)))
	}
	copy(u.Out, b)
}

// Memory returns n bytes of this process's memory: of a queue or a doorbell record, by the address in
// a private part, or of a request's data. The driver must keep it mapped.
func Memory(addr uint64, n int) []byte {
	p := uintptr(addr)
	// The conversion is through memory, as vet allows none of an integer to a pointer.
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n)
}

// ask calls an answer, if there is one.
func ask(answer func(provider.UHW) error, u provider.UHW) error {
	if answer == nil {
		return nil
	}
	return answer(u)
}

// errnoOf returns the error number of an answer.
func errnoOf(err error) syscall.Errno {
	errno, ok := errors.AsType[syscall.Errno](err)
	if err != nil && !ok {
		panic(fmt.Sprintf("an answer fails with what is no syscall.Errno: %v", err))
	}
	return errno
}

// make makes an object, unless the answer refuses it.
func (k *Kernel) make(o *object, answer func(handle uint32) error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last++
	if err := answer(k.last); err != nil {
		return err
	}
	if k.objects == nil {
		k.objects = map[uint32]*object{}
	}
	k.objects[k.last] = o
	return nil
}

// create makes an object that has nothing but a handle.
func (k *Kernel) create(kind uint16, u provider.UHW, answer func(uint32, provider.UHW) error) (handle uint32, err error) {
	return handle, k.make(&object{kind: kind}, func(h uint32) error {
		handle = h
		if answer == nil {
			return nil
		}
		return answer(h, u)
	})
}

func (k *Kernel) createCQ(o object, info *provider.CQInfo, u provider.UHW) error {
	o.kind = abi.UVERBS_OBJECT_CQ
	return k.make(&o, func(handle uint32) error {
		info.Handle = handle
		return ask(with(k.CreateCQ, info), u)
	})
}

func (k *Kernel) createSRQ(info *provider.SRQInfo, u provider.UHW) error {
	return k.make(&object{kind: abi.UVERBS_OBJECT_SRQ}, func(handle uint32) error {
		info.Handle = handle
		return ask(with(k.CreateSRQ, info), u)
	})
}

func (k *Kernel) createQP(qp *QP, u provider.UHW) error {
	return k.make(&object{kind: abi.UVERBS_OBJECT_QP}, func(handle uint32) error {
		qp.Handle, qp.QPNum = handle, handle
		return ask(with(k.CreateQP, qp), u)
	})
}

// with returns an answer about an object, or nil.
func with[T any](answer func(*T, provider.UHW) error, info *T) func(provider.UHW) error {
	if answer == nil {
		return nil
	}
	return func(u provider.UHW) error { return answer(info, u) }
}

// destroy destroys an object.
func (k *Kernel) destroy(kind uint16, handle uint32) syscall.Errno {
	k.mu.Lock()
	defer k.mu.Unlock()
	if o := k.objects[handle]; o == nil || o.kind != kind {
		return syscall.ENOENT
	}
	delete(k.objects, handle)
	return 0
}
