//go:build !nordma

package udp

import (
	"testing"

	"github.com/goverbs/verbs/internal/netif"
)

// TestBacklog checks positions of a port whose receiver is slow.
func TestBacklog(t *testing.T) {
	a, b := pair(t, Network{}, "127.0.0.1")
	entered, leave := make(chan int, 100), make(chan struct{})
	b.Start(func(pkts []netif.Packet) {
		entered <- len(pkts)
		<-leave
	})
	idle := func() bool { return b.Handled(b.Arrived()) }
	until(t, "a port without packets to have no backlog", idle)
	p := []netif.Packet{packet(a.Addr(), b.Addr(), 1044, 1)}
	for range 2 { // The first one is being received, the second one is in the socket.
		if err := a.Send(p); err != nil {
			t.Fatal(err)
		}
		if len(entered) == 0 {
			until(t, "a packet", func() bool { return len(entered) > 0 })
		}
	}
	position := b.Arrived()
	for range 2 {
		if b.Handled(position) {
			t.Error("reached while packets are being received")
		}
		leave <- struct{}{}
	}
	until(t, "the position to be reached", func() bool { return b.Handled(position) })
	until(t, "a port without packets to have no backlog", idle)
	close(leave)
}
