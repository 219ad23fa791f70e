package main

import (
	"io"
	"net"
	"sync"
)

// teardownNotifier notifies the client of each connection that the server has torn down.
type teardownNotifier struct {
	sync.Mutex
	from net.Listener
	to   net.Conn
}

func newTeardownNotifier(port string) (*teardownNotifier, error) {
	l, err := net.Listen("unix", "@connect-"+port)
	return &teardownNotifier{from: l}, err
}

func (t *teardownNotifier) notify() (err error) {
	t.Lock()
	defer t.Unlock()
	if t.to != nil {
		if _, err := t.to.Write([]byte{0}); err == nil {
			return nil
		}
		t.to.Close()
	}
	if t.to, err = t.from.Accept(); err == nil {
		_, err = t.to.Write([]byte{0})
	}
	return err
}

// listener receives the notifications of a teardownNotifier.
type listener struct{ net.Conn }

func dialNotifier(port string) (listener, error) {
	c, err := net.Dial("unix", "@connect-"+port)
	return listener{c}, err
}

// wait waits until n connections have been torn down.
func (l listener) wait(n int) error {
	_, err := io.ReadFull(l, make([]byte, n))
	return err
}
