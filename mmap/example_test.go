//go:build linux

package mmap_test

import (
	"encoding/binary"
	"fmt"
	"log"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/mmap"
)

// Memory for a region that peers write to: outside the Go heap, in whole pages.
func ExampleNewBuffer() {
	b, err := mmap.NewBuffer(5000, mmap.BufferOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	copy(b.Bytes(), "hello")
	fmt.Println(len(b.Bytes()), b.Addr()%uint64(os.Getpagesize()))
	// Output: 5000 0
}

// deviceFile returns a file to map, in place of a device's.
func deviceFile() int {
	fd, err := unix.MemfdCreate("queue", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, int64(os.Getpagesize()))
	}
	if err != nil {
		log.Fatal(err)
	}
	return fd
}

// A queue that a driver of the kernel allocated: the driver says where its indices are.
func ExampleNewRing() {
	fd := deviceFile()
	defer unix.Close(fd)
	region, err := mmap.Map(fd, 0, os.Getpagesize())
	if err != nil {
		log.Fatal(err)
	}
	defer region.Close()
	ring, err := mmap.NewRing(region, mmap.Layout{Producer: 0, Consumer: 64, Data: 128, Log2Slot: 3, Mask: 7})
	if err != nil {
		log.Fatal(err)
	}
	for i := range uint64(3) {
		prod, cons := ring.LoadProducer(), ring.LoadConsumer()
		if ring.Free(prod, cons) == 0 {
			break // the consumer is late
		}
		*(*uint64)(ring.Slot(prod)) = i
		ring.StoreProducer(ring.Next(prod))
	}
	fmt.Println(ring.Used(ring.LoadProducer(), ring.LoadConsumer()), "of", ring.Cap())
	// Output: 3 of 7
}

// What the driver says is checked: no ring reaches beyond its region.
func ExampleLayout() {
	fd := deviceFile()
	defer unix.Close(fd)
	region, err := mmap.Map(fd, 0, os.Getpagesize())
	if err != nil {
		log.Fatal(err)
	}
	defer region.Close()
	_, err = mmap.NewRing(region, mmap.Layout{Producer: 0, Consumer: 64, Data: 128, Log2Slot: 6, Mask: 1<<20 - 1})
	fmt.Println(err != nil)
	// Output: true
}

// A structure of the kernel as bytes, for a system call.
func ExampleBytes() {
	request := struct{ Handle, Flags uint32 }{7, 1}
	fmt.Println(binary.NativeEndian.Uint32(mmap.Bytes(&request)), len(mmap.Bytes(&request)))
	// Output: 7 8
}

// Part of a mapping as an array of values.
func ExampleSlice() {
	b, err := mmap.NewBuffer(4096, mmap.BufferOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	records := mmap.Slice[uint64](b.Bytes(), 64, 4)
	records[3] = 0x1122
	fmt.Println(len(records), b.Bytes()[64+3*8] != 0 || b.Bytes()[64+3*8+7] != 0)
	// Output: 4 true
}

// A doorbell record, of which the device reads the last value.
func ExampleWord() {
	b, err := mmap.NewBuffer(4096, mmap.BufferOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	record := mmap.Word(b.Bytes(), 8)
	mmap.StoreRelease(record, 42)
	fmt.Println(record.Load(), binary.NativeEndian.Uint32(b.Bytes()[8:]))
	// Output: 42 42
}

// Requests first, then the record of how many there are, then the register that tells the device.
func ExampleStoreDoorbell() {
	b, err := mmap.NewBuffer(4096, mmap.BufferOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	record, register := mmap.Word(b.Bytes(), 0), &mmap.Slice[uint64](b.Bytes(), 8, 1)[0]
	mmap.BarrierToDevice()
	mmap.StoreDoorbell(record, 1, register, 0x0100)
	fmt.Println(record.Load(), *register)
	// Output: 1 256
}

// BlueFlame: the request itself is stored to the device, in one piece of 64 bytes.
func ExampleCopyDevice() {
	b, err := mmap.NewBuffer(4096, mmap.BufferOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	from, to := (*[64]byte)(b.Bytes()[:64]), (*[64]byte)(b.Bytes()[2048:])
	copy(from[:], "request")
	mmap.CopyDevice(to, from)
	mmap.FlushDevice() // now, not when the processor likes
	fmt.Printf("%s\n", to[:7])
	// Output: request
}

// Memory of the Go heap may be registered while it is pinned.
func ExamplePin() {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	b := []byte("from the heap")
	fmt.Println(mmap.Pin(&pinner, b) == mmap.Addr(b))
	// Output: true
}

// Memory of a command, whose parts have addresses that the kernel gets.
func ExampleAlloc() {
	b, err := mmap.Alloc(256)
	if err != nil {
		log.Fatal(err)
	}
	defer mmap.Free(b)
	fmt.Println(len(b), mmap.Addr(b) != 0)
	// Output: 256 true
}
