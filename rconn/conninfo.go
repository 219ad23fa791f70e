package rconn

import (
	"fmt"

	"github.com/goverbs/verbs/cm"
)

// Conns describes the accepted connections that are not closed.
func (l *Listener) Conns() []cm.ConnInfo { return infos(&l.tally) }

// Conns describes the connections that are not closed.
func (d *Dialer) Conns() []cm.ConnInfo { return infos(&d.tally) }

func infos(t *tally) (all []cm.ConnInfo) {
	for _, c := range t.Open() {
		i := c.ep.Info()
		i.Layer, i.Stats = "rconn", c.Stats()
		if err := c.Err(); err != nil {
			i.State = fmt.Sprintf("ended: %v", err)
		}
		i.Waits = append(c.send.waits("completions of requests"), c.recv.waits("messages of the peer")...)
		all = append(all, i)
	}
	return all
}

// waits describes the goroutines that wait for completions.
func (q *queue) waits(what string) []cm.Wait {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting == 0 {
		return nil
	}
	return []cm.Wait{{For: fmt.Sprintf("%s, by %d calls", what, q.waiting), Since: q.since}}
}
