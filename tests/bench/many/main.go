// Command many echoes messages on many connections at once with package
// uverbs, as c/many.c does with libibverbs, and says how long that took and how
// much memory the connections took. Both take the same arguments and print the
// same; the C program's text says what they do.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
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
	case len(args) != 4:
		return errors.New("usage: many -s ADDR PORT | ADDR PORT CONNS N")
	}
	conns, err1 := strconv.ParseUint(args[2], 10, 32)
	n, err2 := strconv.ParseUint(args[3], 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	return client(args[0], args[1], work{uint32(conns), uint32(n)})
}

func client(host, port string, w work) error {
	ctx := context.Background()
	m, err := setUp(ctx, host)
	if err != nil {
		return err
	}
	if err := m.allot(w); err != nil {
		return err
	}
	dial := func(i uint32) error {
		d := cm.Dialer{Options: m.options(i)}
		_, err := d.Dial(ctx, net.JoinHostPort(host, port))
		return err
	}
	kb, err := m.grow(dial)
	if err != nil {
		return err
	}
	time.Sleep(cm.Settle) // as in c/cm.h

	start := time.Now()
	for i := range w.Conns {
		if err := m.postSend(i, size); err != nil {
			return err
		}
	}
	if err := m.echo(w.N - w.Conns); err != nil {
		return err
	}
	all := time.Since(start)

	if err := m.postSend(0, 1); err != nil {
		return err
	}
	if err := m.hear(); err != nil {
		return err
	}
	var theirs report
	if _, err := binary.Decode(m.part(0, in), binary.NativeEndian, &theirs); err != nil {
		return err
	}
	fmt.Printf("messages %d\nbytes %d\nkilobytes %d\n", m.got.Messages, m.got.Bytes, kb)
	fmt.Printf("peer_messages %d\npeer_bytes %d\npeer_kilobytes %d\n", theirs.Messages, theirs.Bytes, theirs.Kilobytes)
	fmt.Printf("nanoseconds %d\nconnections %d\n", all, w.Conns)
	return nil
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
	accept := func(i uint32) error {
		r, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		if i == 0 {
			var w work
			if _, err := binary.Decode(r.PrivateData(), binary.NativeEndian, &w); err != nil {
				return err
			}
			if err := m.allot(w); err != nil {
				return err
			}
		}
		_, err = r.Accept(ctx, m.options(i))
		return err
	}
	kb, err := m.grow(accept)
	if err != nil {
		return err
	}
	if err := m.echo(m.N); err != nil {
		return err
	}
	if err := m.hear(); err != nil { // the client is done
		return err
	}
	m.got.Kilobytes = int64(kb)
	if _, err := binary.Encode(m.part(0, out), binary.NativeEndian, &m.got); err != nil {
		return err
	}
	if err := m.postSend(0, binary.Size(m.got)); err != nil {
		return err
	}
	select {}
}

// grow makes the connections, and says by how many KiB of resident memory the
// process has grown with all but the first.
func (m *many) grow(connect func(i uint32) error) (kb int, err error) {
	if err := connect(0); err != nil {
		return 0, err
	}
	before, err := resident()
	if err != nil {
		return 0, err
	}
	for i := uint32(1); i < m.Conns; i++ {
		if err := connect(i); err != nil {
			return 0, err
		}
	}
	after, err := resident()
	return after - before, err
}

// resident is the process's resident memory in KiB, without garbage, which
// belongs to no connection.
func resident() (int, error) {
	debug.FreeOSMemory()
	return self.Resident()
}
