package hostile

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// waitTimeout is how long tests wait for what should happen immediately.
const waitTimeout = 60 * time.Second

// The parts of a peer's memory.
const (
	tableAt  = 0       // descriptors of rsockets
	ringAt   = 4 << 10 // memory to which the victim writes
	ringHalf = 8 << 10
	sendAt   = 32 << 10
	recvAt   = 64 << 10 // slots for receives
	recvSlot = 4 << 10
	recvs    = 32
	peerSize = recvAt + recvs*recvSlot
)

// peer is an endpoint that sends arbitrary data to a server.
type peer struct {
	*cm.Endpoint
	t      *testing.T
	device string
	mem    *uverbs.MR // which the victim may write and read
	victim string     // the address that it dialed
}

// setup allocates a peer's memory and posts its receives.
func (p *peer) setup(e *cm.Endpoint) (err error) {
	if p.mem, err = e.AllocMR(peerSize, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead); err != nil {
		return err
	}
	for i := range recvs {
		if _, err := e.QP.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{p.mem.SGE(recvAt+i*recvSlot, recvSlot)}}); err != nil {
			return err
		}
	}
	return nil
}

// options returns the options of a peer's connection. private is called after setup.
func (p *peer) options(private func(*peer) []byte) cm.Options {
	return cm.Options{
		Setup: func(e *cm.Endpoint) error {
			err := p.setup(e)
			if err == nil && private != nil {
				err = e.Announce(private(p))
			}
			return err
		},
	}
}

// dialPeer connects to a server, from an address that no peer has used before: the server
// identifies peers by address.
func dialPeer(t *testing.T, s *server, private func(*peer) []byte) (*peer, error) {
	t.Helper()
	for {
		if p, err := tryPeer(t, s, private); err != nil || s.claimAddr(p) {
			return p, err
		}
	}
}

func tryPeer(t *testing.T, s *server, private func(*peer) []byte) (*peer, error) {
	t.Helper()
	ctx := labtest.Within(t, waitTimeout)
	p := &peer{t: t, device: s.device, victim: s.addr}
	e, err := (&cm.Dialer{Options: p.options(private)}).Dial(ctx, s.addr)
	if err != nil {
		return nil, err
	}
	p.Endpoint = e
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return p, nil
}

func (p *peer) ended() bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

func (p *peer) iwarp() bool { return labtest.IWARP(p.t, p.device) }

// post posts a request, when there is room, unless the connection has ended.
func (p *peer) post(wr verbs.SendWR) bool {
	wr.Flags |= verbs.SendSignaled
	for deadline := time.Now().Add(waitTimeout); ; {
		var wcs [16]verbs.WC
		for p.SendCQ.Poll(wcs[:]) > 0 {
		}
		_, err := p.QP.PostSend(wr)
		if !errors.Is(err, verbs.ErrQueueFull) {
			return err == nil
		}
		select {
		case <-p.Done():
			return false
		case <-time.After(time.Millisecond):
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// send sends bytes.
func (p *peer) send(b []byte) bool {
	if len(b) <= 64 {
		return p.post(verbs.SendWR{Opcode: verbs.OpSend, Inline: b})
	}
	copy(p.mem.Bytes()[sendAt:recvAt], b)
	return p.post(verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{p.mem.SGE(sendAt, len(b))}})
}

// sendRsockMsg sends a message of rsockets.
func (p *peer) sendRsockMsg(m uint32) bool {
	if p.iwarp() {
		return p.send(binary.NativeEndian.AppendUint32(nil, m))
	}
	return p.post(verbs.SendWR{Opcode: verbs.OpRDMAWriteImm, Imm: m})
}

// write writes a few bytes to memory of the victim.
func (p *peer) write(addr uint64, key uint32, b []byte) bool {
	if len(b) <= 64 {
		return p.post(verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: addr, RKey: key, Inline: b})
	}
	copy(p.mem.Bytes()[sendAt:recvAt], b)
	return p.post(verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: addr, RKey: key, SGL: []verbs.SGE{p.mem.SGE(sendAt, len(b))}})
}

// deregister deregisters the memory that was advertised. Its receives, which need the memory,
// cannot be used any more.
func (p *peer) deregister() {
	if err := p.mem.Close(); err != nil {
		p.t.Error(err)
	}
}
