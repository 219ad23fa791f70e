package rsock

import "github.com/goverbs/verbs/cm"

// Conns describes the RDMA connections that are not closed, those that wait for Accept too.
func (l *Listener) Conns() (all []cm.ConnInfo) {
	for _, r := range l.rdma {
		all = append(all, r.Conns()...)
	}
	return all
}

// Conns describes the RDMA connections that are not closed.
func (d *Dialer) Conns() (all []cm.ConnInfo) {
	for _, c := range d.tally.Open() {
		all = append(all, c.ep.Info())
	}
	return all
}

// describe is for [cm.Endpoint.Describe]. It does without Stats, which takes messages, and so gives the
// peer credits that a Read would have to give: a program that hangs must look as it is.
func (c *Conn) describe(i *cm.ConnInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i.Layer, i.Stats = "rsock", c.stats()
	if c.err == nil {
		i.State = c.life.String()
	}
	if c.tally == nil {
		i.Waits = append(i.Waits, cm.Wait{For: "Accept", Since: i.Since})
	}
	for _, w := range []struct {
		*waiter
		what string
	}{
		{&c.reader.waiter, readWait},
		{&c.writer.waiter, "Write: " + c.writer.shortage()},
		{&c.closer.waiter, "Close: the peer's acknowledgement"},
	} {
		if w.ready != nil {
			i.Waits = append(i.Waits, cm.Wait{For: w.what, Since: w.since, Idle: w.what == readWait})
		}
	}
}

const readWait = "Read: data of the peer"

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
