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

// message is a line of JSON. A copy is made of these, and of the file's bytes as they are:
//
//	client                   version, op, name
//	the side that receives   offset, sum of what it has
//	the side that sends      size, mode, offset that it agrees to
//	                         the bytes from there on
//	                         sum of all
//	the side that receives   sum of all
//
// The offset agreed to is what the receiver has, if the sums are equal, or 0. Instead of any
// message a side may send an error, and close.
type message struct {
	Version int    `json:"version,omitempty"`
	Op      string `json:"op,omitempty"` // put or get
	Name    string `json:"name,omitempty"`
	Size    int64  `json:"size"`
	Mode    uint32 `json:"mode,omitempty"` // permissions
	Offset  int64  `json:"offset"`
	Sum     string `json:"sha256,omitempty"`
	Error   string `json:"error,omitempty"`
	Busy    bool   `json:"busy,omitempty"` // with Error: it may pass
}

const (
	version = 2
	maxLine = 64 << 10
	// silence is how long a peer may send nothing, or take nothing. Sums of what is
	// there already are made in this time.
	silence = 60 * time.Second
)

// denial is an error that the peer reports or makes. Unless it is busy, trying again would
// not help.
type denial struct {
	text string
	busy bool
}

func (d denial) Error() string { return "the other side: " + d.text }

// broken is a failure of the connection.
type broken struct{ error }

func (b broken) Unwrap() error { return b.error }

// temporary reports whether another try may succeed.
func temporary(err error) bool {
	_, broke := errors.AsType[broken](err)
	denied, _ := errors.AsType[denial](err)
	// The server may not have seen yet that the last connection broke.
	return broke || denied.busy
}

// conn is a connection with its protocol.
type conn struct {
	net.Conn
	r *bufio.Reader
}

func newConn(c net.Conn) *conn { return &conn{c, bufio.NewReaderSize(c, maxLine)} }

// transfer sends a file of root, or receives it. A client starts with the given message. The
// peer gets to know of errors that it has not made.
func (c *conn) transfer(root *os.Root, name string, send bool, start *message, at progress) (done copied, err error) {
	defer func() {
		_, theirs := errors.AsType[denial](err)
		_, broke := errors.AsType[broken](err)
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
	c.SetDeadline(time.Now().Add(silence))
	if _, err := c.Write(b); err != nil {
		return broken{err}
	}
	return nil
}

func (c *conn) receive() (m message, err error) {
	c.SetDeadline(time.Now().Add(silence))
	line, err := c.r.ReadSlice('\n')
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return m, broken{err}
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return m, denial{text: "speaks another protocol: " + err.Error()}
	}
	if m.Error != "" {
		return m, denial{m.Error, m.Busy}
	}
	return m, nil
}

// read reads some of a file's bytes.
func (c *conn) read(b []byte) (n int, err error) {
	c.SetDeadline(time.Now().Add(silence))
	n, err = c.r.Read(b)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if n > 0 || err == nil {
		return n, nil
	}
	return 0, broken{err}
}
