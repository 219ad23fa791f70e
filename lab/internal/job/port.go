//go:build linux

package job

import (
	"io"
	"sync"
	"sync/atomic"
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
	mu sync.Mutex
	w  io.Writer
	N  atomic.Int64 // bytes that have arrived
}

func (o *Outlet) Write(b []byte) (int, error) {
	o.mu.Lock()
	if o.w != nil {
		o.w.Write(b)
	}
	o.mu.Unlock()
	o.N.Add(int64(len(b)))
	return len(b), nil
}

// To makes the output go to a writer.
func (o *Outlet) To(w io.Writer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.w = w
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
