//go:build linux

package rmsg_test

import (
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
)

// TestSums compares the sums of a listener and a dialer with what their connections carried: of
// connections that are open, that have ended, and of messages taken after the end.
func TestSums(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		ln := listen(t, run(t, rmsg.Options{}), device)
		d := rmsg.Dialer{Loop: run(t, rmsg.Options{})}
		var clients, servers []*rmsg.Conn
		var messages, bytes uint64
		for i := range 3 {
			c := labtest.Must(d.Connect(ln.Addr().String()))(t)
			s := labtest.Must(ln.Accept(within(t)))(t)
			clients, servers = append(clients, c), append(servers, s)
			for n := range i + 2 {
				size := 100_000 * n
				labtest.Check(t, c.Send(within(t), make([]byte, size)))
				messages, bytes = messages+1, bytes+uint64(size)
			}
		}
		take := func(s *rmsg.Conn) {
			b := labtest.Must(s.Recv(within(t)))(t)
			labtest.Check(t, b.Free())
		}
		check := func(open int, taken uint64) {
			t.Helper()
			ds, ls := d.Stats(), ln.Stats()
			if ds.Open != open || ls.Open != open || ds.Dials != 3 || ls.Accepted != 3 || ds.Failed+ls.Failed != 0 {
				t.Errorf("%+v, %+v, want %d open", ds, ls, open)
			}
			if s := ds.Conns; s.MessagesSent != messages || s.BytesSent != bytes || s.LargeSent != 6 || s.Memory != 0 != (open > 0) {
				t.Errorf("sent %d messages of %d bytes: %+v", messages, bytes, s)
			}
			if s := ls.Conns; s.MessagesReceived != taken || s.LargeReceived != 6 || s.Unread != 0 && open == 0 {
				t.Errorf("took %d messages: %+v", taken, s)
			}
		}
		for i, s := range servers {
			take(s)
			labtest.Until(t, "the messages to be sent", func() bool { return clients[i].Stats().Queued == 0 })
		}
		check(3, 3)
		for i, c := range clients {
			c.Close()
			<-c.Done()
			<-servers[i].Done()
		}
		check(0, 3)
		for i, s := range servers {
			for range i + 1 {
				take(s)
			}
		}
		check(0, messages)
		if got := ln.Stats().Conns.BytesReceived; got != bytes {
			t.Errorf("%d bytes received, want %d", got, bytes)
		}
		ln.Close()
		labtest.Must(d.Connect(ln.Addr().String()))(t).Wait(within(t))
		labtest.Until(t, "the dial to fail", func() bool { return d.Stats().Failed == 1 && d.Stats().Open == 0 })
	})
}
