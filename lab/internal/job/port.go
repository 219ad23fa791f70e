//go:build linux

package job

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// The ports between host and guest, by name.
const (
	portIn     = "stdin"
	portOut    = "stdout"
	portErr    = "stderr"
	PortResult = "result"
)

// Ports are the ports in the order of serial lines, which have no names.
var Ports = []string{portIn, portOut, portErr, PortResult}

// Outlet is where a program's output goes, in the guest and then on the host. A closed output does
// not block the program.
type Outlet struct {
	mu  sync.Mutex
	w   io.Writer
	err error        // of the first Write to w that has failed
	N   atomic.Int64 // bytes that have arrived
}

func (o *Outlet) Write(b []byte) (int, error) {
	o.mu.Lock()
	if o.w != nil {
		if _, err := o.w.Write(b); o.err == nil {
			o.err = err
		}
	}
	o.mu.Unlock()
	o.N.Add(int64(len(b)))
	return len(b), nil
}

// To makes the output go to a writer, and returns the first error of the one before.
func (o *Outlet) To(w io.Writer) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	err := o.err
	o.w, o.err = w, nil
	return err
}

// Busy reports whether a Write waits for the writer.
func (o *Outlet) Busy() bool {
	if !o.mu.TryLock() {
		return true
	}
	o.mu.Unlock()
	return false
}

// OutputError returns the error for output that could not be written, or nil if whoever reads it has closed
// it.
func OutputError(err error) error {
	if err == nil || errors.Is(err, unix.EPIPE) {
		return nil
	}
	return fmt.Errorf("write the program's output: %w", err)
}

// FeedStdin sends stdin as frames of a two-byte length and data, with an empty frame
// as its end: a serial port has no end of file.
func FeedStdin(w io.Writer, r io.Reader) {
	buf := make([]byte, 2+4096)
	for {
		n, err := r.Read(buf[2:])
		if n > 0 {
			buf[0], buf[1] = byte(n>>8), byte(n)
			if _, err := w.Write(buf[:2+n]); err != nil {
				return
			}
		}
		if err != nil {
			w.Write([]byte{0, 0})
			return
		}
	}
}

// ReceiveStdin decodes the frames of FeedStdin.
func ReceiveStdin(w io.WriteCloser, r io.Reader) {
	defer w.Close()
	var head [2]byte
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return
		}
		n := int64(head[0])<<8 | int64(head[1])
		if n == 0 {
			return
		}
		if _, err := io.CopyN(w, r, n); err != nil {
			return
		}
	}
}
