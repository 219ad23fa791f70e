package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"os"
	"time"
)

// The protocol of cp. Both sides say what they have to in lines of JSON; the
// file's bytes stand between them as they are.
//
//	put                                 get
//	C  op, name, size, mode             C  op, name, offset, sum of what it has
//	S  offset, sum of what it has       S  size, mode, offset that it agrees to
//	C  offset that it agrees to         S  the bytes from there on
//	C  the bytes from there on          S  sum of all
//	C  sum of all                       C  sum of all
//	S  sum of all
//
// The offset agreed to is what the receiver has, if the sums are equal, or 0.
// Instead of its answer a side may say what is wrong, and close.
type cpMessage struct {
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
	cpVersion = 1
	cpLine    = 64 << 10 // bytes of a message, at most
	cpChunk   = 1 << 20
	// cpSilence is how long a peer may say nothing, or take nothing. Sums of
	// what is there already are made in this time.
	cpSilence = 60 * time.Second
)

// denial is what the peer says is wrong: unless it is busy, trying again would
// not help.
type denial struct {
	text string
	busy bool
}

func (r denial) Error() string { return "the other side: " + r.text }

// cpConn is a connection with its protocol.
type cpConn struct {
	net.Conn
	r *bufio.Reader
}

func newCPConn(c net.Conn) *cpConn { return &cpConn{c, bufio.NewReaderSize(c, cpLine)} }

func (c *cpConn) say(m cpMessage) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	c.SetDeadline(time.Now().Add(cpSilence))
	_, err = c.Write(append(b, '\n'))
	return err
}

func (c *cpConn) hear() (m cpMessage, err error) {
	c.SetDeadline(time.Now().Add(cpSilence))
	line, err := c.r.ReadSlice('\n')
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return m, denial{text: "speaks another protocol: " + err.Error()}
	}
	if m.Error != "" {
		return m, denial{m.Error, m.Busy}
	}
	return m, nil
}

// fileError is a local fault, which trying again would not help.
type fileError struct{ error }

func (e fileError) Unwrap() error { return e.error }

// sendFile sends a file from an offset on, and its sum. sum is that of what
// comes before.
func (c *cpConn) sendFile(f *os.File, offset, size int64, sum hash.Hash, progress func(int64)) error {
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return fileError{err}
	}
	buf := make([]byte, cpChunk)
	for offset < size {
		n, err := io.ReadFull(f, buf[:min(int64(len(buf)), size-offset)])
		if err != nil {
			return fileError{fmt.Errorf("the file has become shorter while it was sent: %w", err)}
		}
		sum.Write(buf[:n])
		c.SetDeadline(time.Now().Add(cpSilence))
		if _, err := c.Write(buf[:n]); err != nil {
			return err
		}
		offset += int64(n)
		progress(offset)
	}
	return c.say(cpMessage{Size: size, Sum: hex.EncodeToString(sum.Sum(nil))})
}

// receiveFile receives what sendFile sends into part, and says whether it is
// what was sent.
func (c *cpConn) receiveFile(part *os.File, offset, size int64, sum hash.Hash, progress func(int64)) (string, error) {
	if err := part.Truncate(offset); err != nil {
		return "", fileError{err}
	}
	if _, err := part.Seek(offset, io.SeekStart); err != nil {
		return "", fileError{err}
	}
	buf := make([]byte, cpChunk)
	for offset < size {
		c.SetDeadline(time.Now().Add(cpSilence))
		n, err := c.r.Read(buf[:min(int64(len(buf)), size-offset)])
		sum.Write(buf[:n])
		if _, err := part.Write(buf[:n]); err != nil {
			return "", fileError{err}
		}
		offset += int64(n)
		progress(offset)
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil && offset < size {
			return "", err
		}
	}
	end, err := c.hear()
	if err != nil {
		return "", err
	}
	got := hex.EncodeToString(sum.Sum(nil))
	if end.Sum != got {
		return "", errSum
	}
	return got, nil
}

// errSum is damage on the way, or a file that changed while it was copied. What
// has come is of no use.
var errSum = errors.New("the file that came is not the one that was sent: SHA-256 differs")

// sumOf is the state of the sum of a file's first n bytes.
func sumOf(f *os.File, n int64) (hash.Hash, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, n)); err != nil {
		return nil, fileError{err}
	}
	return sum, nil
}

// agree returns where a sender goes on that is told what the receiver has.
func agree(f *os.File, size int64, has cpMessage) (int64, hash.Hash, error) {
	if has.Offset > 0 && has.Offset <= size {
		sum, err := sumOf(f, has.Offset)
		if err != nil {
			return 0, nil, err
		}
		if hex.EncodeToString(sum.Sum(nil)) == has.Sum {
			return has.Offset, sum, nil
		}
	}
	return 0, sha256.New(), nil
}
