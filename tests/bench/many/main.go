// Command many echoes messages on many connections concurrently with package uverbs,
// as c/many.c does with libibverbs, and prints how long that took and how much memory
// the connections use. Both take the same arguments and print the same; the comments
// of the C program describe them.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"math"
	"net"
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/tests/bench/self"
)

func main() {
	log.SetFlags(0)
	if err := run(os.Args[1:]); err != nil {
		log.Fatal("many: ", err)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 3 && args[0] == "-s":
		return serve(args[1], args[2])
	case len(args) != 5:
		return errors.New("usage: many -s ADDR PORT | ADDR PORT CONNS N WARM")
	}
	conns, err1 := strconv.ParseUint(args[2], 10, 32)
	n, err2 := strconv.ParseUint(args[3], 10, 32)
	warm, err3 := strconv.ParseUint(args[4], 10, 32)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	return client(args[0], args[1], uint32(conns), n, warm)
}

func client(host, port string, conns uint32, n, warm uint64) error {
	ctx := context.Background()
	m, err := setUp(ctx, host)
	if err != nil {
		return err
	}
	if err := m.allocMemory(conns); err != nil {
		return err
	}
	before, err := m.connect(func(i uint32) error {
		d := cm.Dialer{Options: m.options(i)}
		_, err := d.Dial(ctx, net.JoinHostPort(host, port))
		return err
	})
	if err != nil {
		return err
	}
	if err := m.messages(uint64(conns)); err != nil {
		return err
	}
	if err := m.recordGrowth(before); err != nil {
		return err
	}
	if err := self.Again(func(out *bufio.Writer) error { return m.measure(n, warm, out) }); err != nil {
		return err
	}
	if err := m.postSend(0, over); err != nil {
		return err
	}
	_, err = m.echo(math.MaxUint64, 0)
	return err
}

// measure exchanges n messages there and back, after warm others, and prints how long that
// took.
func (m *many) measure(n, warm uint64, out *bufio.Writer) error {
	if err := m.messages(warm); err != nil {
		return err
	}
	start := time.Now()
	if err := m.messages(n); err != nil {
		return err
	}
	took := time.Since(start)
	if err := m.postSend(0, ask); err != nil {
		return err
	}
	if _, err := m.echo(math.MaxUint64, 0); err != nil {
		return err
	}
	var theirs report
	if _, err := binary.Decode(m.part(0, in), binary.NativeEndian, &theirs); err != nil {
		return err
	}
	fmt.Fprintf(out, "messages %d\nbytes %d\nkilobytes %d\n", m.got.Messages, m.got.Bytes, m.got.Kilobytes)
	fmt.Fprintf(out, "peer_messages %d\npeer_bytes %d\npeer_kilobytes %d\n", theirs.Messages, theirs.Bytes, theirs.Kilobytes)
	fmt.Fprintf(out, "nanoseconds %d\n", took)
	return nil
}

// messages exchanges n messages there and back.
func (m *many) messages(n uint64) error {
	m.got.Messages, m.got.Bytes = 0, 0
	conns := uint32(len(m.conns))
	for i := range conns {
		if err := m.postSend(i, size); err != nil {
			return err
		}
	}
	_, err := m.echo(n, n-uint64(conns))
	return err
}

// serve serves one client until the standard input ends.
func serve(host, port string) error {
	ctx := context.Background()
	l, err := cm.Listen(ctx, net.JoinHostPort(host, port))
	if err != nil {
		return err
	}
	m, err := setUp(ctx, host)
	if err != nil {
		return err
	}
	self.Ready(func() { os.Exit(0) })
	before, err := m.connect(func(i uint32) error {
		r, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		if i == 0 {
			if err := m.allocMemory(binary.NativeEndian.Uint32(r.PrivateData())); err != nil {
				return err
			}
		}
		_, err = r.Accept(ctx, m.options(i))
		return err
	})
	if err != nil {
		return err
	}
	conns := uint64(len(m.conns))
	if _, err := m.echo(conns, conns); err != nil {
		return err
	}
	if err := m.recordGrowth(before); err != nil {
		return err
	}
	for {
		m.got.Messages, m.got.Bytes = 0, 0
		switch n, err := m.echo(math.MaxUint64, math.MaxUint64); {
		case err != nil:
			return err
		case n == over:
			if err := m.postSend(0, over); err != nil {
				return err
			}
			select {} // this process is ended after the connections
		}
		if _, err := binary.Encode(m.part(0, out), binary.NativeEndian, &m.got); err != nil {
			return err
		}
		if err := m.postSend(0, binary.Size(m.got)); err != nil {
			return err
		}
	}
}

// connect makes the connections, and returns the resident memory after the first.
func (m *many) connect(one func(i uint32) error) (before int, err error) {
	if err := one(0); err != nil {
		return 0, err
	}
	if before, err = resident(); err != nil {
		return 0, err
	}
	for i := 1; i < len(m.conns); i++ {
		if err := one(uint32(i)); err != nil {
			return 0, err
		}
	}
	return before, nil
}

// recordGrowth records by how many KiB the resident memory has grown.
func (m *many) recordGrowth(before int) error {
	after, err := resident()
	m.got.Kilobytes = int64(after - before)
	return err
}

// resident returns the process's resident memory in KiB, without garbage, which
// belongs to no connection.
func resident() (int, error) {
	debug.FreeOSMemory()
	return self.Resident()
}
