package hosts

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net/rpc"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/lab/connectx"
	"github.com/goverbs/verbs/uverbs"
)

var dcBytes = flag.Int64("bytes", 0, "bytes that TestConnectXDCLoss moves on each adapter; 10 GB if zero, or 64 MB with -short")

const (
	dcTargets = 8
	dcTurn    = 4  // messages to one target, before those to the next
	dcDepth   = 16 // messages in flight
)

// dcData has the data of all messages.
var dcData = sync.OnceValue(func() []byte { return labtest.RandomBytes(1, dcMemory+dcMessage) })

// dcPart returns where in dcData a message to a target begins: elsewhere than those before it, and than
// those to other targets.
func dcPart(target, message int) int { return (target*65537 + message*257) % dcMemory }

// dcPlace returns where in the target's memory a message is written. There is one place more than
// receives at least, since the adapter writes before it finds that there is no receive.
func dcPlace(message int) int { return message * dcMessage % dcMemory }

// pour sends messages to each of some targets, every other one as a WRITE, with immediates that count.
func (n *dcNode) pour(to []DCTarget, messages int) error {
	copy(n.local.Bytes(), dcData())
	ahs := make([]*uverbs.AH, len(to))
	for i := range to {
		ah, err := n.handle(to[i])
		if err != nil {
			return err
		}
		defer ah.Close()
		ahs[i] = ah
	}
	inFlight := 0
	wait := func(most int) error {
		for ; inFlight > most; inFlight-- {
			wc, err := next(n.cq)
			if err == nil {
				err = wc.Err()
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	for first := 0; first < messages; first += dcTurn {
		for i := range to {
			for m := first; m < min(first+dcTurn, messages); m++ {
				wr := verbs.SendWR{Opcode: verbs.OpSendImm, Imm: uint32(m), SGL: []verbs.SGE{n.local.SGE(dcPart(i, m), dcMessage)}}
				if m%2 == 1 {
					wr.Opcode, wr.RemoteAddr = verbs.OpRDMAWriteImm, uint64(dcPlace(m))
				}
				err := wait(dcDepth - 1)
				if err == nil {
					err = n.post(ahs[i], to[i], wr)
				}
				if err != nil {
					return fmt.Errorf("message %d to target %d: %w", m, i, err)
				}
				inFlight++
			}
		}
	}
	return wait(0)
}

// check receives the messages of pour, and compares their data.
func (n *dcNode) check(messages int) error {
	targets := map[uint32]int{}
	for i, d := range n.targets {
		targets[d.dct.Num()] = i
	}
	for range messages * len(n.targets) {
		wc, err := next(n.recvs)
		if err == nil {
			err = wc.Err()
		}
		if err != nil {
			return err
		}
		i := targets[wc.QPNum]
		d := n.targets[i]
		at, part := dcMemory+int(wc.ID)*dcMessage, dcPart(i, d.received)
		if d.received%2 == 1 {
			at = dcPlace(d.received)
		}
		switch {
		case int(wc.Imm()) != d.received || wc.ByteLen != dcMessage:
			return fmt.Errorf("message %d to target %d is %+v", d.received, i, wc)
		case !bytes.Equal(d.mr.Bytes()[at:at+dcMessage], dcData()[part:part+dcMessage]):
			return fmt.Errorf("message %d to target %d: the data differs", d.received, i)
		}
		d.received++
		if err := d.postRecv(int(wc.ID)); err != nil {
			return err
		}
	}
	return nil
}

// CheckDC has the peer's targets check messages.
func (*Peer) CheckDC(messages int, _ *struct{}) error { return dc.check(messages) }

// LoseArgs are an adapter, and of how many packets that it sends one is lost.
type LoseArgs struct {
	Device string
	OneOf  uint16
}

// lose has the network lose packets.
func (a LoseArgs) lose() error {
	dir, err := filepath.EvalSymlinks("/sys/class/infiniband/" + a.Device + "/device")
	if err != nil {
		return err
	}
	return connectx.Inject(dir, connectx.FaultLoss, a.OneOf)
}

// Lose has the network lose packets of the peer's adapter.
func (*Peer) Lose(a LoseArgs, _ *struct{}) error { return a.lose() }

// lose has the network lose packets of both adapters.
func (p *peer) lose(t *testing.T, device string, oneOf uint16) {
	t.Helper()
	a := LoseArgs{device, oneOf}
	p.call(t, "Lose", a, &struct{}{})
	labtest.Check(t, a.lose())
}

// hwCounter returns a counter of a host's adapter.
func (p *peer) hwCounter(t *testing.T, host int, device, name string) int {
	t.Helper()
	text := p.run(t, host, "cat", "/sys/class/infiniband/"+device+"/ports/1/hw_counters/"+name)
	return labtest.Must(strconv.Atoi(strings.TrimSpace(text)))(t)
}

// TestConnectXDCLoss sends from one initiator to eight targets of the other machine, by RoCE and by
// InfiniBand, while one packet of a hundred is lost each way. The targets compare what they get.
func TestConnectXDCLoss(t *testing.T) {
	p := dialTwin(t)
	if *dcBytes == 0 {
		*dcBytes = int64(labtest.Rounds(10_000_000_000, 64_000_000))
	}
	messages := int(*dcBytes / (dcTargets * dcMessage))
	labtest.EachAdapter(t, func(t *testing.T, device string, infiniBand bool) {
		n := labtest.Made(newDCNode(device, 0))(t)
		var to []DCTarget
		p.call(t, "StartDC", StartDCArgs{device, dcTargets}, &to)
		defer p.call(t, "CloseDC", struct{}{}, &struct{}{})
		gaps := p.hwCounter(t, 2, device, "out_of_sequence")
		p.lose(t, device, 100)
		defer p.lose(t, device, 0)
		began := time.Now()
		checked := p.rpc.Go("Peer.CheckDC", messages, &struct{}{}, make(chan *rpc.Call, 1))
		err := n.pour(to, messages)
		<-checked.Done // a target that has found a difference receives no more, so pour fails as well
		labtest.Check(t, errors.Join(err, checked.Error))
		took := time.Since(began).Seconds()
		moved := messages * dcTargets * dcMessage
		packets := moved / labtest.Must(n.pd.Context().QueryPort(1))(t).ActiveMTU.Bytes()
		if gaps = p.hwCounter(t, 2, device, "out_of_sequence") - gaps; gaps < packets/200 {
			t.Errorf("the targets' adapter has seen %d gaps, of %d packets of which one of a hundred is lost", gaps, packets)
		}
		t.Logf("InfiniBand %v: %d targets got %d messages each, %d bytes, in %.1f s, %.1f MB/s, with %d gaps among %d packets", infiniBand, dcTargets, messages, moved, took, float64(moved)/1e6/took, gaps, packets)
	})
}
