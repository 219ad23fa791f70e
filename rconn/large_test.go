//go:build linux

package rconn

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"golang.org/x/sys/unix"
)

// TestLargeRegion advertises a region of more than 4 GiB, whose offsets and lengths do not fit 32
// bits, and copies to and from both sides of that boundary. Only the pages there are written: a
// registration for writing allocates its pages, so the region is for READs, and the peer's view of
// the part that it may write is moved back to where the region begins.
func TestLargeRegion(t *testing.T) {
	labtest.Require(t)
	if labtest.Lab || strconv.IntSize < 64 {
		t.Skip("a kernel pins all of a region, and a slice of 4 GiB needs 64 bits")
	}
	labtest.RequireAll(t, "reads 4 GiB of pages")
	var boundary uint64 = 4 << 30 // a variable: a constant would not compile on 386
	limit := int(boundary)
	size := limit + 4*chunkSize
	mem := labtest.Must(unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE))(t)
	t.Cleanup(func() { labtest.Check(t, unix.Munmap(mem)) })
	unix.Madvise(mem[:limit-4*chunkSize], unix.MADV_HUGEPAGE) // reads then take one page of zeros, in 2,000 steps

	first := limit - 4*chunkSize // of the part that the peer may write
	a, b := newPair(t, labtest.RXE, Options{Adverts: 2}, Options{Setup: func(c *Conn) error {
		all, err := c.Register(mem, RemoteRead)
		if err != nil {
			return err
		}
		part, err := c.Register(mem[first:], ReadWrite)
		if err != nil {
			return err
		}
		return errors.Join(c.Announce(0, all.All()), c.Announce(1, part.All()))
	}})
	defer b.Close()
	defer a.Close()
	from, to := a.Adverts()[0], a.Adverts()[1]
	if from.Len != size {
		t.Fatalf("%v, want one of %d bytes", from, size)
	}
	to.Addr, to.Len = from.Addr, from.Len

	// Of the calls with 4 GiB only the check of the length is tried, as the bytes take too long.
	for _, n := range []int{limit - 1, limit, limit + 1, size} {
		if err := a.Put(ended(t), to.At(0), mem[:n]); !errors.Is(err, context.Canceled) {
			t.Errorf("put %d bytes: %v", n, err)
		}
		if err := a.Get(ended(t), mem[:n], from.At(0)); !errors.Is(err, context.Canceled) {
			t.Errorf("get %d bytes: %v", n, err)
		}
	}
	if err := a.Put(ended(t), to.At(size-limit+1), mem[:limit]); !errors.Is(err, verbs.ErrRange) {
		t.Errorf("put 4 GiB of which one byte is beyond the region: %v", err)
	}

	data, got := fill(make([]byte, 2*chunkSize+7), 1), make([]byte, 2*chunkSize+7)
	for _, off := range []int{limit - chunkSize - 3, limit, size - len(data)} {
		check(t, a.Put(testContext(t), to.At(off), data))
		if !bytes.Equal(mem[off:][:len(data)], data) {
			t.Errorf("put at %d: other data", off)
		}
		check(t, a.Get(testContext(t), got, from.At(off)))
		if !bytes.Equal(got, data) {
			t.Errorf("get from %d: other data", off)
		}
		clear(mem[first:])
		clear(got)
	}

	r := labtest.Must(a.Register(mem, 0))(t)
	if err := a.Post(Write(to.At(0), r.Span(0, limit))); !errors.Is(err, verbs.ErrRange) {
		t.Errorf("one WRITE of 4 GiB: %v", err)
	}
}
