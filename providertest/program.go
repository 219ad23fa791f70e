//go:build linux

package providertest

import (
	"encoding/binary"
	"io"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/mmap"
)

// PlaceData is the place of inline data in the memory that a [Program] shares, which orders.h calls DATA. In
// front of it are the orders and answers.
const PlaceData = 2 << 20

const (
	placeOut = 1 << 20
	size     = 64 << 20
)

// Program is a C program beside the driver, which does what a test orders by the C library, with c/orders.h.
// Both share memory:
//
//	test ──► orders, numbers of 64 bits ──► program
//	     ◄── answers ◄──
//	     ◄── queues that the C library shares with a device ──►
type Program struct {
	Mem []byte // what is shared

	t    testing.TB
	to   io.Writer
	from io.Reader
	in   []byte // orders so far
	out  []byte // of the answer, what has not been read
}

// Start starts a program, which gets the memory as file 3 and ends with the test.
func Start(t testing.TB, cmd *exec.Cmd) *Program {
	t.Helper()
	fd, err := unix.MemfdCreate("shared", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "shared")
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	m, err := mmap.Map(fd, 0, size)
	if err != nil {
		t.Fatal(err)
	}
	cmd.ExtraFiles = []*os.File{file}
	cmd.Stderr = os.Stderr
	to, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	from, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		to.Close() // it ends when there are no more orders
		if err := cmd.Wait(); err != nil && !t.Failed() {
			t.Error(err)
		}
		m.Close()
	})
	return &Program{Mem: m.Bytes(), t: t, to: to, from: from}
}

// Put adds an order, or its arguments. An order is not 0.
func (p *Program) Put(all ...uint64) {
	for _, v := range all {
		p.in = binary.NativeEndian.AppendUint64(p.in, v)
	}
}

// Do has the orders done.
func (p *Program) Do() {
	p.t.Helper()
	p.Put(0)
	if copy(p.Mem[:placeOut], p.in) < len(p.in) {
		p.t.Fatal("too many orders")
	}
	p.in = p.in[:0]
	var b [1]byte
	if _, err := p.to.Write(b[:]); err != nil {
		p.t.Fatal(err)
	}
	if _, err := io.ReadFull(p.from, b[:]); err != nil {
		p.t.Fatal("the C program has ended: ", err)
	}
	p.out = p.Mem[placeOut:PlaceData]
}

// Get returns the next number of the answer.
func (p *Program) Get() uint64 { return binary.NativeEndian.Uint64(p.Bytes(8)) }

// Bytes returns the next n bytes of the answer, which has numbers behind them at the next multiple of 8.
func (p *Program) Bytes(n int) []byte {
	b := p.out[:n]
	p.out = p.out[(n+7)&^7:]
	return b
}

// Int is Get for sizes.
func (p *Program) Int() int { return int(p.Get()) }

// Place returns n bytes of what is shared, from the place on that is next in the answer.
func (p *Program) Place(n int) []byte {
	at := p.Get()
	return p.Mem[at:][:n]
}
