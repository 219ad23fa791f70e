package interop

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// pingpongPeer is ibv_rc_pingpong with a fault: alter changes the n-th message before it is
// sent back.
type pingpongPeer struct {
	alter func(n int, message []byte)
	qp    *uverbs.QP
	cq    *uverbs.CQ
	mr    *uverbs.MR
}

func newPingpongPeer(t *testing.T, size int, alter func(int, []byte)) *pingpongPeer {
	ctx := labtest.Open(t)
	ch := labtest.Made(ctx.CreateCompChannel())(t)
	pd := labtest.Made(ctx.AllocPD())(t)
	p := &pingpongPeer{alter: alter}
	p.mr = labtest.Made(pd.AllocMR(size, verbs.AccessLocalWrite, uverbs.MROptions{}))(t)
	p.cq = labtest.Made(ctx.CreateCQ(uverbs.CQOptions{Depth: 8, Channel: ch}))(t)
	p.qp = labtest.Must(pd.CreateQP(uverbs.QPOptions{
		SendCQ: p.cq, RecvCQ: p.cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1},
	}))(t)
	labtest.Close(t, p.qp)
	return p
}

// serve runs the server for one client.
func (p *pingpongPeer) serve(ctx context.Context, l net.Listener, rounds int) error {
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	var remote verbs.QPAddr
	if err := p.readAddr(conn, &remote); err != nil {
		return err
	}
	local, err := p.qp.Addr(1)
	if err != nil {
		return err
	}
	if err := p.connect(local, remote); err != nil {
		return err
	}
	if err := p.writeAddr(conn, local); err != nil {
		return err
	}
	return p.exchange(ctx, rounds)
}

// join runs the client. As in C, the first message is what the memory happens to hold.
func (p *pingpongPeer) join(ctx context.Context, port, rounds int) error {
	conn, err := net.Dial("tcp", labtest.Addr+":"+strconv.Itoa(port))
	if err != nil {
		return err
	}
	defer conn.Close()
	local, err := p.qp.Addr(1)
	if err != nil {
		return err
	}
	if err := p.writeAddr(conn, local); err != nil {
		return err
	}
	var remote verbs.QPAddr
	if err := p.readAddr(conn, &remote); err != nil {
		return err
	}
	if err := p.connect(local, remote); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "done\x00"); err != nil {
		return err
	}
	if err := p.send(); err != nil {
		return err
	}
	return p.exchange(ctx, rounds)
}

func (p *pingpongPeer) writeAddr(conn net.Conn, e verbs.QPAddr) error {
	_, err := fmt.Fprintf(conn, "%04x:%06x:%06x:%x\x00", e.LID, e.QPNum, e.PSN, e.GID[:])
	return err
}

func (p *pingpongPeer) readAddr(conn net.Conn, e *verbs.QPAddr) error {
	b := make([]byte, 52)
	if _, err := io.ReadFull(conn, b); err != nil {
		return err
	}
	var gid []byte
	_, err := fmt.Sscanf(string(b[:51]), "%4x:%6x:%6x:%x", &e.LID, &e.QPNum, &e.PSN, &gid)
	copy(e.GID[:], gid)
	return err
}

func (p *pingpongPeer) connect(local, remote verbs.QPAddr) error {
	if err := p.qp.Connect(local, remote, uverbs.ConnectOptions{PathMTU: 3}); err != nil {
		return err
	}
	return p.recv()
}

func (p *pingpongPeer) recv() error {
	_, err := p.qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{p.mr.SGE(0, p.mr.Len())}})
	return err
}

func (p *pingpongPeer) send() error {
	_, err := p.qp.PostSend(verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{p.mr.SGE(0, p.mr.Len())}})
	return err
}

// exchange sends back rounds messages.
func (p *pingpongPeer) exchange(ctx context.Context, rounds int) error {
	for n := range rounds {
		var wc [1]verbs.WC
		if _, err := p.cq.PollWait(ctx, wc[:]); err != nil {
			return err
		}
		if err := wc[0].Err(); err != nil {
			return err
		}
		p.alter(n, p.mr.Bytes())
		if err := p.recv(); err != nil {
			return err
		}
		if err := p.send(); err != nil {
			return err
		}
	}
	return nil
}

// TestPingPongCheck checks that damage of any kind is found. The peer causes it, which
// stands for damage at any point on the way.
func TestPingPongCheck(t *testing.T) {
	labtest.Require(t)
	const size, rounds = 5000, 20
	verbs := []string{built(t, "verbs"), "pingpong", "rc", "-c", "-j", "-s", strconv.Itoa(size), "-n", strconv.Itoa(rounds), "--timeout", "3s"}
	var last []byte
	for _, c := range []struct {
		name  string
		alter func(n int, message []byte)
		want  string // in the output of verbs; empty for success
	}{
		{"nothing", func(int, []byte) {}, ""},
		{"last bit", at(7, func(b []byte) { b[size-1] ^= 1 }), "byte 4999 is"},
		{"first bit", at(7, func(b []byte) { b[0] ^= 0x80 }), "byte 0 is"},
		{"shift", at(7, func(b []byte) { copy(b, b[1:]) }), "byte 0 is"},
		{"one lost", at(7, func(b []byte) { copy(b[1024:], b[2048:3072]) }), "byte 1024 is"},
		{"one repeated", func(n int, b []byte) {
			if n == 7 {
				copy(b, last)
			}
			last = slices.Clone(b)
		}, "byte 1 is"},
	} {
		// The peer runs until all is done or the program has ended.
		judge := func(t *testing.T, p *program, play func(context.Context) error) {
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-p.done; cancel() }()
			err := play(ctx)
			if c.want != "" {
				p.fails(c.want)
				return
			}
			if p.wait(); err != nil {
				t.Error(err)
			}
		}
		t.Run(c.name+"/client", func(t *testing.T) {
			l := labtest.Must(net.Listen("tcp", labtest.Addr+":0"))(t)
			defer l.Close()
			peer := newPingpongPeer(t, size, c.alter)
			client := start(t, verbs[0], append(verbs[1:len(verbs):len(verbs)], "-p", strconv.Itoa(l.Addr().(*net.TCPAddr).Port), labtest.Addr)...)
			judge(t, client, func(ctx context.Context) error {
				context.AfterFunc(ctx, func() { l.Close() })
				return peer.serve(ctx, l, rounds)
			})
		})
		t.Run(c.name+"/server", func(t *testing.T) {
			peer := newPingpongPeer(t, size, c.alter)
			pingpongPorts++
			server := start(t, verbs[0], append(verbs[1:len(verbs):len(verbs)], "-p", strconv.Itoa(pingpongPorts))...)
			server.listensTCP(pingpongPorts)
			judge(t, server, func(ctx context.Context) error { return peer.join(ctx, pingpongPorts, rounds-1) })
		})
	}
}

// at alters message n only.
func at(n int, alter func([]byte)) func(int, []byte) {
	return func(i int, b []byte) {
		if i == n {
			alter(b)
		}
	}
}
