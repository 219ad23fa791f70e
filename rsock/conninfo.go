package rsock

import "github.com/goverbs/verbs/cm"

// Conns describes the RDMA connections that Accept returned and that are not closed.
func (l *Listener) Conns() []cm.ConnInfo { return infos(&l.tally) }

// Conns describes the RDMA connections that are not closed.
func (d *Dialer) Conns() []cm.ConnInfo { return infos(&d.tally) }

func infos(t *tally) (all []cm.ConnInfo) {
	for _, c := range t.Open() {
		all = append(all, c.info())
	}
	return all
}

func (c *Conn) info() cm.ConnInfo {
	i := c.ep.Info()
	i.Layer, i.Stats = "rsock", c.Stats()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		i.State = c.life.String()
	}
	for _, w := range []struct {
		*waiter
		what string
	}{
		{&c.reader.waiter, "Read: data of the peer"},
		{&c.writer.waiter, "Write: " + c.writer.shortage()},
		{&c.closer.waiter, "Close: the peer's acknowledgement"},
	} {
		if w.ready != nil {
			i.Waits = append(i.Waits, cm.Wait{For: w.what, Since: w.since})
		}
	}
	return i
}

// shortage returns what a Write waits for.
func (w *writer) shortage() string {
	switch {
	case w.full:
		return "completions of the device"
	case w.targets.full():
		return "the peer to read, as its ring is full"
	}
	return "credits of the peer"
}

// String describes the state of a connection that has not failed.
func (s *life) String() string {
	ends := [...]string{open: "open", readEnded: "reading ended", writeEnded: "writing ended", bothEnded: "both directions ended"}
	text := ends[s.local&bothEnded]
	if s.isClosed() {
		text = "closing"
	}
	if s.peer != open {
		text += ", by the peer: " + ends[s.peer]
	}
	return text
}
