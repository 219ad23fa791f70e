package cp

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"time"
)

// message is a line of JSON. A copy consists of messages and of the file's raw bytes:
//
//	client                   version, op, name
//	the side that receives   offset, sum of what it has
//	the side that sends      size, mode, offset that it agrees to
//	                         the bytes from there on
//	                         sum of all
//	the side that receives   sum of all
//
// The offset agreed to is the receiver's if the sums are equal, otherwise 0. Instead of any
// message a side may send an error and close.
type message struct {
	Version int    `json:"version,omitempty"`
	Op      string `json:"op,omitempty"` // put or get
	Name    string `json:"name,omitempty"`
	Size    int64  `json:"size"`
	Mode    uint32 `json:"mode,omitempty"` // permissions
	Offset  int64  `json:"offset"`
	Sum     string `json:"sha256,omitempty"`
	Error   string `json:"error,omitempty"`
	Busy    bool   `json:"busy,omitempty"` // with Error: a retry may succeed
}

const (
	version = 2
	maxLine = 64 << 10
	// ioTimeout is how long a peer may neither send nor receive. It includes the time to
	// compute the sum of the data that the peer has already.
	ioTimeout = 60 * time.Second
)

// peerError is an error that the peer reports or causes. A retry can succeed only if the peer
// is busy.
type peerError struct {
	text string
	busy bool
}

func (d peerError) Error() string { return "the other side: " + d.text }

// connError reports a failure of the connection.
type connError struct{ error }

func (b connError) Unwrap() error { return b.error }

// temporary reports whether a retry may succeed.
func temporary(err error) bool {
	_, broke := errors.AsType[connError](err)
	denied, _ := errors.AsType[peerError](err)
	// The server may not have seen yet that the last connection broke.
	return broke || denied.busy
}

// conn implements the protocol on a connection.
type conn struct {
	net.Conn
	r *bufio.Reader
}

func newConn(c net.Conn) *conn { return &conn{c, bufio.NewReaderSize(c, maxLine)} }

// transfer sends or receives a file of root. A client starts with the given message. Errors
// that the peer has neither reported nor caused are sent to it.
func (c *conn) transfer(root *os.Root, name string, send bool, start *message, at progress) (done copied, err error) {
	defer func() {
		_, theirs := errors.AsType[peerError](err)
		_, broke := errors.AsType[connError](err)
		if err != nil && !theirs && !broke {
			c.send(message{Error: err.Error(), Busy: errors.Is(err, errBusy)})
		}
	}()
	open := openPartial
	if send {
		open = openSource
	}
	f, err := open(root, name)
	if err != nil {
		return done, err
	}
	defer f.Close()
	if start != nil {
		if err := c.send(*start); err != nil {
			return done, err
		}
	}
	if send {
		return c.sendFile(f, at)
	}
	return c.receiveFile(&partial{f, root, name}, at)
}

func (c *conn) send(m message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return c.write(append(b, '\n'))
}

func (c *conn) write(b []byte) error {
	c.SetDeadline(time.Now().Add(ioTimeout))
	if _, err := c.Write(b); err != nil {
		return connError{err}
	}
	return nil
}

func (c *conn) receive() (m message, err error) {
	c.SetDeadline(time.Now().Add(ioTimeout))
	line, err := c.r.ReadSlice('\n')
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return m, connError{err}
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return m, peerError{text: "speaks another protocol: " + err.Error()}
	}
	if m.Error != "" {
		return m, peerError{m.Error, m.Busy}
	}
	return m, nil
}

// read reads some of a file's bytes.
func (c *conn) read(b []byte) (n int, err error) {
	c.SetDeadline(time.Now().Add(ioTimeout))
	n, err = c.r.Read(b)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if n > 0 || err == nil {
		return n, nil
	}
	return 0, connError{err}
}
