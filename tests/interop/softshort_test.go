package interop

import (
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/internal/roce"
	"github.com/goverbs/verbs/internal/udp"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/tests/workload"
)

var buildShort = compile("short", "testdata/short.c", "-lrdmacm", "-libverbs")

// rtuNetwork is UDP on which confirmations (RTU), which are sent once, are lost, or overtaken by
// the disconnect request (DREQ).
type rtuNetwork struct {
	udp.Network
	late bool
	hold func() // called for each RTU
}

type rtuPort struct {
	soft.Port
	network *rtuNetwork
}

func (n *rtuNetwork) Open(addr netip.AddrPort) (soft.Port, error) {
	p, err := n.Network.Open(addr)
	return rtuPort{p, n}, err
}

// Start implements [soft.Port].
func (p rtuPort) Start(receive func([]soft.Packet)) {
	var held []soft.Packet
	p.Port.Start(func(pkts []soft.Packet) {
		for _, pk := range pkts {
			switch attrOf(pk.Data) {
			case roce.AttrRTU:
				p.network.hold()
				pk.Data = slices.Clone(pk.Data)
				held = append(held, pk)
			case roce.AttrDREQ:
				receive([]soft.Packet{pk})
				if p.network.late {
					receive(held)
				}
				held = nil
			default:
				receive([]soft.Packet{pk})
			}
		}
	})
}

// attrOf returns the attribute of a packet of the connection manager, or 0.
func attrOf(data []byte) roce.CMAttr {
	var p roce.Packet
	if p.Decode(data) != nil || p.DestQP != 1 {
		return 0
	}
	_, m, err := roce.DecodeCM(p.Payload)
	if err != nil {
		return 0
	}
	return m.Attr()
}

// testSoftShort accepts connections of a client in C on rxe that sends a message and disconnects,
// before its RTU arrives: the message is there, and then the end.
func testSoftShort(t *testing.T) {
	for name, late := range map[string]bool{"RTU late": true, "RTU lost": false} {
		t.Run(name, func(t *testing.T) {
			ctx := timeLimit(t)
			var mu sync.Mutex
			rtus := 0
			network := &rtuNetwork{late: late, hold: func() {
				mu.Lock()
				defer mu.Unlock()
				rtus++
			}}
			d := labtest.Made(soft.New(soft.Options{Name: "short", Host: "short", Network: network, Addrs: []netip.Addr{netip.MustParseAddr(softProgram)}}))(t)
			transport := &cm.Transport{Host: d}
			defer transport.Close()
			begin := time.Now()
			err := workload.Short(ctx, transport, softProgram, func(port uint16, args ...string) func() {
				c := startC(t, append(append([]string{labtest.Must(buildShort())(t)}, args...), softProgram, strconv.Itoa(int(port)))...)
				return func() { c.Wait() }
			})
			if err != nil {
				t.Error(err)
			}
			t.Logf("%d RTUs held back; %v", rtus, time.Since(begin))
			if rtus < 2 {
				t.Errorf("%d RTUs have come", rtus)
			}
		})
	}
}
