//go:build linux

package rsock

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// hostilePeer is a peer that connects as rsockets do, and then breaks the protocol.
type hostilePeer struct {
	*cm.Endpoint
	t     *testing.T
	peer  hello
	iwarp bool
}

func dialHostile(t *testing.T, device, addr string, mine hello) *hostilePeer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	private := make([]byte, helloSize)
	d := cm.Dialer{Options: cm.Options{
		PrivateData: private,
		Setup: func(e *cm.Endpoint) error {
			mr, err := e.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
			if err != nil {
				return err
			}
			mine.sgl = sge{mr.Addr(), mr.RKey(), 2}
			mine.put(private)
			for range 32 {
				if _, err := e.QP.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{mr.SGE(0, 4096)}}); err != nil {
					return err
				}
			}
			return nil
		},
	}}
	r := &hostilePeer{Endpoint: labtest.Must(d.Dial(ctx, addr))(t), t: t, iwarp: labtest.IWARP(t, device)}
	t.Cleanup(func() { r.Close() })
	r.peer = labtest.Must(parseHello(r.PrivateData))(t)
	return r
}

// sendMessages posts messages.
func (r *hostilePeer) sendMessages(messages ...message) {
	r.t.Helper()
	for _, m := range messages {
		wr := verbs.SendWR{Opcode: verbs.OpRDMAWriteImm, Imm: uint32(m)}
		if r.iwarp {
			wr = verbs.SendWR{Opcode: verbs.OpSend, Inline: binary.NativeEndian.AppendUint32(nil, uint32(m))}
		}
		r.post(wr)
	}
}

func (r *hostilePeer) post(wr verbs.SendWR) {
	r.t.Helper()
	if _, err := r.QP.PostSend(wr); err != nil {
		r.t.Fatal(err)
	}
}

// validHello is a valid hello, except that the ring does not exist.
var validHello = hello{bigEndian: bigEndianHost, credits: 20, buffer: sge{1 << 41, 2, 4096}}

// TestHostile tests that the connection of a peer that breaks the protocol ends with an
// error, and that another connection of the same listener is not affected.
func TestHostile(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		var log labtest.Log
		l := labtest.Must((&ListenConfig{Logger: log.Logger()}).Listen(t.Context(), "rdma", labtest.AddrOf(device)+":0"))(t)
		defer l.Close()
		accept := func(t *testing.T) *Conn {
			t.Helper()
			timeout := time.AfterFunc(20*time.Second, func() { l.Close() })
			defer timeout.Stop()
			c := labtest.Must(l.Accept())(t).(*Conn)
			t.Cleanup(func() { c.SetLinger(0); c.Close() })
			c.SetDeadline(time.Now().Add(20 * time.Second))
			return c
		}
		good := labtest.Must(Dial("rdma", l.Addr().String()))(t)
		defer good.Close()
		other := accept(t)
		checkOther := func(t *testing.T) {
			t.Helper()
			deadline := time.Now().Add(20 * time.Second)
			good.SetDeadline(deadline)
			other.SetDeadline(deadline)
			b := make([]byte, 5)
			if _, err := good.Write([]byte("hello")); err != nil {
				t.Error(err)
			} else if _, err := io.ReadFull(other, b); err != nil || string(b) != "hello" {
				t.Errorf("the other connection: %q, %v", b, err)
			}
		}
		read := func(c *Conn) error { _, err := io.Copy(io.Discard, c); return err }
		write := func(c *Conn) (err error) {
			for b := make([]byte, 1000); err == nil; _, err = c.Write(b) {
			}
			return err
		}
		for _, r := range []struct {
			name string
			mine hello
			do   func(r *hostilePeer)
			call func(c *Conn) error
			want error
		}{
			{"more than was offered", validHello, func(r *hostilePeer) { r.sendMessages(opData | 1<<20) }, read, ErrProtocol},
			{"nothing as data", validHello, func(r *hostilePeer) { r.sendMessages(opData) }, read, ErrProtocol},
			{"lying credits", validHello, func(r *hostilePeer) { r.sendMessages(opSGL | 0xfff0) }, read, ErrProtocol},
			{"lying credits, to a writer", validHello, func(r *hostilePeer) { r.sendMessages(opSGL | 0xfff0) }, func(c *Conn) error {
				read(c)
				return write(c)
			}, ErrProtocol},
			{"data after the end", validHello, func(r *hostilePeer) { r.sendMessages(opData|1, msgShutdown, opData|1) }, func(c *Conn) error {
				read(c)
				_, err := c.Read(make([]byte, 1))
				for err == io.EOF { // until the rest has arrived
					c.mu.Lock()
					c.progress()
					err = c.err
					c.mu.Unlock()
					if err == nil {
						err = io.EOF
					}
				}
				return err
			}, ErrProtocol},
			{"reserved", validHello, func(r *hostilePeer) { r.sendMessages(3 << opShift) }, read, ErrProtocol},
			{"messages of another kind", validHello, func(r *hostilePeer) {
				wr := verbs.SendWR{Opcode: verbs.OpSend}
				if r.iwarp {
					wr.Inline = []byte("abc")
				}
				r.post(wr)
			}, read, ErrProtocol},
			{"long messages", validHello, func(r *hostilePeer) {
				r.post(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("more than a receive takes")})
			}, read, syscall.ECONNRESET},
			{"memory that is not there", validHello, func(r *hostilePeer) {}, write, syscall.ECONNRESET},
			{"writes beyond the ring", validHello, func(r *hostilePeer) {
				r.post(verbs.SendWR{Opcode: verbs.OpRDMAWrite, Inline: []byte("x"), RemoteAddr: r.peer.buffer.addr + 1<<30, RKey: r.peer.buffer.key})
			}, read, syscall.ECONNRESET},
			{"goes without a word", validHello, func(r *hostilePeer) { r.sendMessages(opData | 5); r.Disconnect() }, read, syscall.ECONNRESET},
		} {
			t.Run(r.name, func(t *testing.T) {
				peer := dialHostile(t, device, l.Addr().String(), r.mine)
				c := accept(t)
				r.do(peer)
				err := r.call(c)
				if !errors.Is(err, r.want) {
					t.Errorf("%v", err)
				}
				var ne net.Error
				if r.want != ErrProtocol && (!errors.As(err, &ne) || ne.Timeout()) {
					t.Errorf("%#v", err)
				}
				select {
				case <-peer.Done():
				case <-time.After(20 * time.Second):
					t.Error("the connection continues")
				}
				checkOther(t)
				c.SetDeadline(time.Now()) // this call logs the error that progress found
				if log.Has("level=WARN", `msg="connection failed"`) != (r.want == ErrProtocol) {
					t.Errorf("logged: %v", &log)
				}
				log.Reset()
			})
		}
		t.Run("bad private data", func(t *testing.T) {
			for _, private := range [][]byte{nil, []byte("hello"), make([]byte, 56)} {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				d := cm.Dialer{Options: cm.Options{PrivateData: private}}
				e, err := d.Dial(ctx, l.Addr().String())
				if !labtest.Rejected(t, device, err) {
					t.Errorf("%q: %v", private, err)
				}
				if err == nil {
					e.Close()
				}
				cancel()
			}
			checkOther(t)
		})
		t.Run("bytes that were never written", func(t *testing.T) {
			peer := dialHostile(t, device, l.Addr().String(), validHello)
			c := accept(t)
			peer.sendMessages(opData|3, msgDisconnect) // bytes that were never written
			if b, err := io.ReadAll(c); err != nil || string(b) != "\x00\x00\x00" {
				t.Errorf("%q, %v", b, err)
			}
			if _, err := c.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
				t.Error(err)
			}
		})
	})
}

// TestHostileListener tests that dialing a listener that is not an rsocket fails.
func TestHostileListener(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
		defer cancel()
		l := labtest.Must(cm.Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		defer l.Close()
		lie := hello{credits: 20, sgl: sge{1 << 40, 1, 2}}
		empty := make([]byte, helloSize)
		lie.put(empty)
		for _, private := range [][]byte{nil, []byte("hello"), empty} {
			var wg sync.WaitGroup
			wg.Go(func() {
				req, err := l.Accept(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				if e, err := req.Accept(ctx, cm.Options{PrivateData: private}); err != nil {
					t.Error(err)
				} else {
					<-e.Done()
					e.Close()
				}
			})
			if c, err := Dial("rdma", l.Addr().String()); !errors.Is(err, ErrProtocol) {
				t.Errorf("%q: %v, %v", private, c, err)
			}
			wg.Wait()
		}
	})
}
