//go:build !linux || nordma

package host

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/goverbs/verbs"
)

// errLinux is the error of all system calls.
var errLinux = fmt.Errorf("%w on %s: %w", verbs.ErrNoRDMA, runtime.GOOS, errors.ErrUnsupported)

func openKernel(string) (int, error)                           { return -1, errLinux }
func closeKernel(int) error                                    { return errLinux }
func readKernel(int, []byte) (int, error)                      { return 0, errLinux }
func writeKernel(int, []byte) (int, error)                     { return 0, errLinux }
func dupKernel(fd, lowest int) (int, error)                    { return -1, errLinux }
func ioctlKernel(int, uint32, []byte) syscall.Errno            { return syscall.EOPNOTSUPP }
func mapKernel(int, int64, int, bool) ([]byte, error)          { return nil, errLinux }
func newKernelEvents(int) (EventFile, error)                   { return nil, errLinux }
func (*Handle) writeKernel([]byte, bool) syscall.Errno         { return syscall.EOPNOTSUPP }
func (*Handle) ioctlKernel(uint32, []byte, bool) syscall.Errno { return syscall.EOPNOTSUPP }

// Replace is for the kernel's files.
func Replace(fd, by int) error { return errLinux }

// MapMemory returns zeroed memory of Go that is aligned to 4 KiB.
func MapMemory(length, pageSize int) ([]byte, error) {
	const page = 4 << 10
	if pageSize != 0 {
		return nil, errLinux
	}
	b := make([]byte, length+page-1)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (page - 1)
	return b[skip:][:length:length], nil
}

// Unmap leaves the memory to the garbage collector.
func Unmap([]byte) error { return nil }

// kernelSet does not exist.
type kernelSet struct{ fd int }

func newKernelSet() (*kernelSet, error)          { return nil, errLinux }
func (*kernelSet) add(fd int, id int32) error    { return errLinux }
func (*kernelSet) remove(int)                    {}
func (*kernelSet) signal(bool)                   {}
func (*kernelSet) poll([]Event) []Event          { return nil }
func (*kernelSet) prepare() error                { return errLinux }
func (*kernelSet) wait(func(uintptr) bool) error { return errLinux }
func (*kernelSet) close()                        {}
