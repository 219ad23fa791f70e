package engine

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/netif"
	"github.com/goverbs/verbs/internal/roce"
)

// TestIdents receives packets without their identification, which senders count or choose.
func TestIdents(t *testing.T) {
	w := newWire(t, verbs.RC)
	w.qp.Destroy() // nothing is answered
	p := roce.Packet{Opcode: roce.RCSendOnly, PSN: wirePSN, PKey: roce.DefaultPKey, DestQP: w.qp.Num()}
	r := newReceiver(w.n.dev, w.n.dev.gids.at(0))
	accepted := func(id uint16) bool {
		np := netif.Packet{Src: w.port.Addr(), Dst: w.n.dev.gids.at(0).local, Data: w.flow.AppendICRC(p.Append(nil), id)}
		return r.decode(&np) != nil
	}
	count := func(from uint16, n int) {
		t.Helper()
		for i := range uint16(n) {
			// Some overtake others.
			if id := from + i ^ i&16; !accepted(id) {
				t.Errorf("packet %d of a sender that counts is refused", id)
			}
		}
	}
	count(0xff00, 1000)
	if !accepted(1100) {
		t.Error("refused after packets to others")
	}
	count(1101, 100)
	if accepted(0x8000) {
		t.Error("accepted what the ICRC of a packet with an error might seem to be")
	}
	count(1201, 100)
	r.now += 20 * time.Second
	if !accepted(18000) {
		t.Error("refused after a pause")
	}
	refused := 0
	random := rand.New(rand.NewPCG(1, 2))
	for range 10000 {
		if !accepted(uint16(random.Uint32())) {
			refused++
		}
	}
	if refused > 1 {
		t.Errorf("refused %d packets of a sender that does not count", refused)
	}
	if len(r.senders) != 1 {
		t.Errorf("%d senders", len(r.senders))
	}
}
