package uverbs

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/maps"
	"github.com/goverbs/verbs/internal/sys"
)

// accessWritable has the rights that require writable memory (ib_access_writable).
const accessWritable = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic | verbs.AccessMWBind

// failMemory is fail for registering length bytes of this process's memory at addr. The kernel says
// EFAULT or ENOMEM for many reasons.
func (c *contextCore) failMemory(o *object, op string, err error, addr, length uint64, access verbs.Access) error {
	attr := &c.dev.Attr
	switch {
	case errors.Is(err, syscall.EFAULT):
		e := o.fail(op, err)
		if e.Hint = maps.Problem(addr, length, access&accessWritable != 0); e.Hint == "" {
			e.Hint = "this memory cannot be registered: it may map a device, or a file beyond its end"
		}
		return e
	case errors.Is(err, syscall.ENOMEM):
		before := addr & uint64(os.Getpagesize()-1) // bytes of the first page before addr
		if pinned := explainPins(err, sys.WholePages(before+length)); pinned != err {
			return o.fail(op, pinned)
		}
		if c.driver.Name() == "rxe" && length > maxRXE {
			e := o.fail(op, err)
			e.Hint = "rxe registers at most 1 GiB at a time on most kernels: register parts"
			return e
		}
	}
	return o.failSize(op, err, "MaxMR", attr.MaxMR)
}

// pinError is ENOMEM from pinning more than the limit of locked memory leaves (ib_umem_get).
type pinError struct {
	error
	hint string
}

func (e *pinError) Unwrap() error { return e.error }

// explainPins returns err, or a pinError if the limit of locked memory kept the kernel from pinning
// so many bytes. A process that has pinned more than the limit is exempt by CAP_IPC_LOCK, unless its limit has been
// lowered since.
func explainPins(err error, bytes uint64) error {
	if !errors.Is(err, syscall.ENOMEM) {
		return err
	}
	limit, used := sys.LockedMemory()
	if used > limit && sys.LocksFreely() || used <= limit && bytes <= limit-used {
		return err
	}
	return &pinError{err, fmt.Sprintf("locked memory is limited to %d KiB, of which %d are in use, and this takes %d: raise ulimit -l (RLIMIT_MEMLOCK, LimitMEMLOCK=)",
		limit>>10, used>>10, bytes>>10)}
}

// maxRXE is the longest region of rxe since about Linux 6.2: the list of its pages (struct
// rxe_mr_page, 16 bytes each) must fit in one kmalloc of 4 MiB (__alloc_mr_page_info).
const maxRXE = 1 << 30
