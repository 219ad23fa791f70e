package rconn

import (
	"fmt"

	"github.com/goverbs/verbs/cm"
)

// Conns describes the accepted connections that are not closed.
func (l *Listener) Conns() []cm.ConnInfo { return l.l.Conns() }

// Conns describes the connections that are not closed.
func (d *Dialer) Conns() (all []cm.ConnInfo) {
	for _, c := range d.tally.Open() {
		all = append(all, c.ep.Info())
	}
	return all
}

// describe is for [cm.Endpoint.Describe]. It polls nothing: a program that hangs must look as it is.
func (c *Conn) describe(i *cm.ConnInfo) {
	i.Layer, i.Stats = "rconn", c.polled()
	if err := c.Err(); err != nil {
		i.State = fmt.Sprintf("ended: %v", err)
	}
	i.Waits = append(c.send.waits("completions of requests", false), c.recv.waits("messages of the peer", true)...)
}

// waits describes the goroutines that wait for completions.
func (q *queue) waits(what string, idle bool) []cm.Wait {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.began) == 0 {
		return nil
	}
	return []cm.Wait{{For: fmt.Sprintf("%s, by %d calls", what, len(q.began)), Since: q.began[0], Idle: idle}}
}
