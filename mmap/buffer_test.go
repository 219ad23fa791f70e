//go:build linux

package mmap

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTooFewHugePages: the error says how many pages are needed and free, and where to reserve
// more.
func TestTooFewHugePages(t *testing.T) {
	b, err := NewBuffer(1<<30, BufferOptions{PageSize: 2 << 20}) // the pool has no gigabyte
	if err == nil {
		b.Close()
		t.Skip("the pool of huge pages has a gigabyte")
	}
	if errors.Is(err, unix.EINVAL) {
		t.Skip("no huge pages of 2 MiB here")
	}
	if text := err.Error(); !errors.Is(err, unix.ENOMEM) || !strings.Contains(text, "512 huge pages") || !strings.Contains(text, "/nr_hugepages") {
		t.Error(err)
	}
}

// TestCloseAgain: a buffer whose memory could not be freed keeps it, and another Close frees it.
func TestCloseAgain(t *testing.T) {
	b, err := NewBuffer(8192, BufferOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mem := b.mem
	b.mem = mem[1:] // which munmap refuses, as it is not aligned
	if err := b.Close(); !errors.Is(err, unix.EINVAL) || b.mem == nil {
		t.Errorf("closed with memory that cannot be freed: %v", err)
	}
	b.mem = mem
	if err := b.Close(); err != nil || b.Bytes() != nil {
		t.Errorf("closed again: %v", err)
	}
}
