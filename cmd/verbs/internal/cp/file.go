package cp

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"

	"github.com/goverbs/verbs/internal/unix"
)

// chunk is the number of bytes that are read or received at a time.
const chunk = 1 << 20

// progress is called with the number of bytes that are there, and the file's size. The first
// call follows the peer's answer and has the offset at which the copy starts.
type progress func(offset, size int64)

// copied describes a copy that was made.
type copied struct {
	from, size int64
	sum        string
}

var (
	errBusy = errors.New("the file is being received already")
	// errSum reports data that was damaged on the way, or a file that changed while it was
	// copied. The received data is discarded.
	errSum = errors.New("the file that came is not the one that was sent: SHA-256 differs")
)

func pathError(name, why string) error {
	return &fs.PathError{Op: "copy", Path: name, Err: errors.New(why)}
}

// openSource opens a regular file to be sent.
func openSource(root *os.Root, name string) (*os.File, error) {
	return openRegular(root, name, os.O_RDONLY)
}

// openRegular opens a regular file. It does not wait for the other end of a FIFO.
func openRegular(root *os.Root, name string, flags int) (*os.File, error) {
	f, err := root.OpenFile(name, flags|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = pathError(name, "not a regular file")
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// openPartial opens the received part of a file, creating it if needed, and locks it.
func openPartial(root *os.Root, name string) (*os.File, error) {
	if info, err := root.Stat(name); err == nil && !info.Mode().IsRegular() {
		return nil, pathError(name, "it exists and is no regular file")
	}
	f, err := openRegular(root, partName(name), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	if err := lock(f, root, partName(name)); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// lock locks a file for this process. It fails also if another process has just finished the
// file and renamed it.
func lock(f *os.File, root *os.Root, name string) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == unix.EWOULDBLOCK {
		return errBusy
	}
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if now, err := root.Stat(name); err != nil || !os.SameFile(info, now) {
		return errBusy
	}
	return nil
}

// sendFile sends the part of a file that the receiver lacks.
func (c *conn) sendFile(f *os.File, at progress) (done copied, err error) {
	info, err := f.Stat()
	if err != nil {
		return done, err
	}
	has, err := c.receive()
	if err != nil {
		return done, err
	}
	done.size = info.Size()
	sum := sha256.New()
	if has.Offset > 0 && has.Offset <= done.size {
		old, err := sumOf(f, has.Offset)
		if err != nil {
			return done, err
		}
		if hexSum(old) == has.Sum {
			done.from, sum = has.Offset, old
		}
	}
	if err := c.send(message{Size: done.size, Mode: uint32(info.Mode().Perm()), Offset: done.from}); err != nil {
		return done, err
	}
	at(done.from, done.size)
	if err := c.sendBytes(f, done, sum, at); err != nil {
		if _, broke := err.(connError); broke { // the receiver may have sent the reason
			if _, reason := c.receive(); reason != nil && !temporary(reason) {
				return done, reason
			}
		}
		return done, err
	}
	done.sum = hexSum(sum)
	_, err = c.receive() // the receiver has it, or an error
	return done, err
}

func (c *conn) sendBytes(f *os.File, what copied, sum hash.Hash, at progress) error {
	if _, err := f.Seek(what.from, io.SeekStart); err != nil {
		return err
	}
	buf := make([]byte, chunk)
	for offset := what.from; offset < what.size; {
		n, err := io.ReadFull(f, buf[:min(chunk, what.size-offset)])
		if err != nil {
			return fmt.Errorf("the file has become shorter while it was sent: %w", err)
		}
		sum.Write(buf[:n])
		if err := c.write(buf[:n]); err != nil {
			return err
		}
		offset += int64(n)
		at(offset, what.size)
	}
	return c.send(message{Size: what.size, Sum: hexSum(sum)})
}

// partial is a file that is being received.
type partial struct {
	*os.File
	root *os.Root
	name string
}

// receiveFile receives what sendFile sends, and renames the file when it is complete and
// its sum is right.
func (c *conn) receiveFile(p *partial, at progress) (done copied, err error) {
	info, err := p.Stat()
	if err != nil {
		return done, err
	}
	sum, err := sumOf(p.File, info.Size())
	if err != nil {
		return done, err
	}
	if err := c.send(message{Offset: info.Size(), Sum: hexSum(sum)}); err != nil {
		return done, err
	}
	m, err := c.receive()
	if err != nil {
		if _, refused := err.(peerError); refused && info.Size() == 0 { // there is no such file: leave nothing
			p.remove()
		}
		return done, err
	}
	if m.Size < 0 || m.Offset != 0 && (m.Offset != info.Size() || m.Offset > m.Size) {
		return done, peerError{text: fmt.Sprintf("wants to go on at %d of %d bytes", m.Offset, m.Size)}
	}
	done.from, done.size = m.Offset, m.Size
	if m.Offset == 0 {
		sum = sha256.New()
	}
	at(m.Offset, m.Size)
	if err := c.receiveBytes(p.File, done, sum, at); err != nil {
		return done, err
	}
	end, err := c.receive()
	if err != nil {
		return done, err
	}
	if done.sum = hexSum(sum); end.Sum != done.sum {
		p.remove()
		return done, errSum
	}
	if err := p.finish(fs.FileMode(m.Mode) & fs.ModePerm); err != nil {
		return done, err
	}
	c.send(message{Size: m.Size, Sum: done.sum}) // the file is complete even if this fails
	return done, nil
}

func (c *conn) receiveBytes(f *os.File, what copied, sum hash.Hash, at progress) error {
	if err := f.Truncate(what.from); err != nil {
		return err
	}
	if _, err := f.Seek(what.from, io.SeekStart); err != nil {
		return err
	}
	buf := make([]byte, chunk)
	for offset := what.from; offset < what.size; {
		n, err := c.read(buf[:min(chunk, what.size-offset)])
		if err != nil {
			return err
		}
		sum.Write(buf[:n])
		if _, err := f.Write(buf[:n]); err != nil {
			return err
		}
		offset += int64(n)
		at(offset, what.size)
	}
	return nil
}

func (p *partial) remove() { p.root.Remove(partName(p.name)) }

// finish moves the file to its final name.
func (p *partial) finish(mode fs.FileMode) error {
	if err := p.Chmod(mode); err != nil {
		return err
	}
	if err := p.Sync(); err != nil {
		return err
	}
	return p.root.Rename(partName(p.name), p.name)
}

// sumOf returns the hash after the first n bytes of a file.
func sumOf(f *os.File, n int64) (hash.Hash, error) {
	sum := sha256.New()
	_, err := io.Copy(sum, io.NewSectionReader(f, 0, n))
	return sum, err
}

func hexSum(sum hash.Hash) string { return hex.EncodeToString(sum.Sum(nil)) }
