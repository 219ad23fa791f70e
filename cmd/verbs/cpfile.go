package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// openSource opens a regular file to be sent.
func openSource(root *os.Root, name string) (*os.File, fs.FileInfo, error) {
	// A FIFO must not hold up who opens it.
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fileError{err}
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "copy", Path: name, Err: errors.New("not a regular file")}
	}
	if err != nil {
		f.Close()
		return nil, nil, fileError{err}
	}
	return f, info, nil
}

// partial is a file that is being received.
type partial struct {
	root *os.Root
	name string
	file *os.File
}

var errBusy = errors.New("the file is being received already")

// openPartial opens what there is of a file, for this process alone.
func openPartial(root *os.Root, name string) (*partial, error) {
	if info, err := root.Stat(name); err == nil && !info.Mode().IsRegular() {
		return nil, fileError{&fs.PathError{Op: "copy", Path: name, Err: errors.New("there is something that is no regular file")}}
	}
	f, err := root.OpenFile(partName(name), os.O_RDWR|os.O_CREATE|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fileError{err}
	}
	p := &partial{root, name, f}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "copy", Path: partName(name), Err: errors.New("not a regular file")}
	}
	if err == nil {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == unix.EWOULDBLOCK {
			err = errBusy
		}
	}
	if err == nil {
		// Whoever had it may just have finished, and given it its name.
		now, serr := root.Stat(partName(name))
		if serr != nil || !os.SameFile(info, now) {
			err = errBusy
		}
	}
	if err != nil {
		f.Close()
		return nil, fileError{err}
	}
	return p, nil
}

// has tells how much has come, as the sender is told.
func (p *partial) has() (cpMessage, hash.Hash, error) {
	info, err := p.file.Stat()
	if err != nil {
		return cpMessage{}, nil, fileError{err}
	}
	sum, err := sumOf(p.file, info.Size())
	if err != nil {
		return cpMessage{}, nil, err
	}
	return cpMessage{Offset: info.Size(), Sum: hex.EncodeToString(sum.Sum(nil))}, sum, nil
}

// accepts says whether what a sender agrees to makes sense to who has m.
func (m cpMessage) accepts(agreed cpMessage) error {
	if agreed.Size < 0 || agreed.Offset != 0 && (agreed.Offset != m.Offset || agreed.Offset > agreed.Size) {
		return denial{text: fmt.Sprintf("wants to go on at %d of %d bytes", agreed.Offset, agreed.Size)}
	}
	return nil
}

// take receives the file from the offset that the sender has agreed to, and
// gives it its name when all is there and right.
func (p *partial) take(c *cpConn, has, agreed cpMessage, sum hash.Hash, progress func(int64)) (string, error) {
	if err := has.accepts(agreed); err != nil {
		return "", err
	}
	if agreed.Offset == 0 {
		sum = sha256.New()
	}
	got, err := c.receiveFile(p.file, agreed.Offset, agreed.Size, sum, progress)
	if err != nil {
		if err == errSum {
			p.root.Remove(partName(p.name))
		}
		return "", err
	}
	if err := p.file.Chmod(fs.FileMode(agreed.Mode) & fs.ModePerm); err != nil {
		return "", fileError{err}
	}
	if err := p.file.Sync(); err != nil {
		return "", fileError{err}
	}
	if err := p.root.Rename(partName(p.name), p.name); err != nil {
		return "", fileError{err}
	}
	return got, nil
}

func (p *partial) Close() error { return p.file.Close() }
