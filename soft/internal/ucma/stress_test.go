package ucma

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs/internal/roce"
)

// TestStress runs random commands in many goroutines on two machines, while messages are lost
// and a device is removed and added. Commands may fail. In the end nothing is left.
func TestStress(t *testing.T) {
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 2))
			n := newNetwork()
			n.drop = func(roce.CMMessage) bool { return random.IntN(10) == 0 } // called with a lock
			ma, mb := New(nil), New(nil)
			n.device(ma, 1, "10.0.0.1")
			n.device(ma, 2, "10.0.1.1")
			n.device(mb, 3, "10.0.0.2")
			var programs []*program
			var all sync.WaitGroup
			for k := range 6 {
				m := []*Manager{ma, mb}[k%2]
				p := &program{t: t, m: m, file: m.Open()}
				programs = append(programs, p)
				all.Go(func() { p.roam(rand.New(rand.NewPCG(seed, uint64(10+k)))) })
			}
			all.Go(func() {
				for range 3 {
					time.Sleep(20 * time.Second)
					ma.lock()
					removed := ma.devices[0]
					ma.unlock()
					removed.Remove()
					time.Sleep(time.Second)
					n.device(ma, 1, "10.0.0.1")
				}
			})
			all.Wait()
			for _, p := range programs {
				p.file.Close()
			}
			for _, m := range []*Manager{ma, mb} {
				checkEmpty(t, m)
			}
			time.Sleep(24 * time.Hour) // no timer is left that does anything
		})
	}
}

// roam runs random commands. It reads events as they come.
func (p *program) roam(random *rand.Rand) {
	addrs := []string{"10.0.0.1:1", "10.0.1.1:1", "10.0.0.2:1", "0.0.0.0:2", "10.0.0.2:2", "127.0.0.1:1", "10.0.0.9:1"}
	spaces := []uint16{tcp, udp}
	space := spaces[random.IntN(2)]
	ids := []*testID{p.newID(space)}
	for range 2000 {
		k := random.IntN(len(ids))
		id, addr := ids[k], addrs[random.IntN(len(addrs))]
		switch random.IntN(14) {
		case 0:
			ids = append(ids, p.newID(space))
		case 1:
			id.bind(addr)
		case 2:
			id.listen(uint32(random.IntN(4)))
		case 3, 4:
			id.resolve("", addr)
			id.resolveRoute()
		case 5:
			id.connect(random.Uint32()&0xffffff, "x")
		case 6:
			id.accept(random.Uint32()&0xffffff, "x")
		case 7:
			id.establish()
		case 8:
			id.reject(0, "x")
		case 9:
			id.disconnect()
		case 10:
			if g, err := id.join("239.1.1.1:0", 0); err == nil && random.IntN(2) == 0 {
				g.leave()
			}
		case 11:
			id.initQPAttr(2)
		case 12:
			if len(ids) > 1 {
				id.destroy()
				ids = append(ids[:k], ids[k+1:]...)
			}
		case 13:
			time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
		}
		for {
			e, err := p.next()
			if err != nil {
				break
			}
			if eventType(e.Event) == connectRequest {
				ids = append(ids, &testID{p, e.Id, 0, space})
			}
		}
	}
}
