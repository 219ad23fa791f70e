package interop

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestPingPeerGone checks that one side ends when the other does, in whatever way that ends.
func TestPingPeerGone(t *testing.T) {
	labtest.RequireLong(t)
	labtest.Each(t, func(t *testing.T, device string) {
		c, verbs := rpingSides(t)
		for _, r := range labtest.Few(2, []struct {
			name   string
			s, c   rpingSide
			signal os.Signal
			server bool   // is signalled, instead of the client
			want   string // of the client; empty for success
		}{
			{"killed C client", verbs, c, unix.SIGKILL, false, "signal: killed"},
			{"killed C server", c, verbs, unix.SIGKILL, true, "peer disconnected"},
			{"interrupted Go client, C server", c, verbs, os.Interrupt, false, ""},
			{"interrupted client", verbs, verbs, unix.SIGTERM, false, ""},
			{"interrupted client of many rounds", verbs, verbs.with("-C", "100000000"), os.Interrupt, false, "interrupt signal received"},
			{"killed client", verbs, verbs, unix.SIGKILL, false, "signal: killed"},
			{"killed server", verbs, verbs, unix.SIGKILL, true, "peer disconnected"},
			{"interrupted server", verbs, verbs, os.Interrupt, true, "peer disconnected"},
		}) {
			t.Run(r.name, func(t *testing.T) {
				server, client := startRping(t, device, r.s, r.c.with("-v"))
				client.waitFirstRound()
				if r.server {
					signalAll(t, []*program{server}, r.signal)
				} else {
					signalAll(t, []*program{client}, r.signal)
				}
				switch {
				case r.want == "":
					client.Wait()
				case strings.HasPrefix(r.want, "signal: "):
					if <-client.Done; client.Err == nil || client.Err.Error() != r.want {
						t.Error(client.Err)
					}
				default:
					client.Fails(r.want)
				}
				switch {
				case !r.server:
					server.waitServed()
				case r.signal == os.Interrupt:
					server.Fails("interrupt signal received")
				}
			})
		}
	})
}

// waitServed waits for a server whose client has ended. C's server must have seen the disconnect
// event; it fails if a request failed before. It may post a receive after the queue has been
// flushed and wait for its completion forever: neither siw nor rxe processes such a receive,
// and libibverbs does not ring the doorbell for it.
func (p *program) waitServed() {
	p.T.Helper()
	if p.Cmd.Args[0] != "rping" {
		p.Wait()
		return
	}
	select {
	case <-p.Done:
	case <-time.After(20 * time.Second):
		if !labtest.ThreadIn(fmt.Sprintf("/proc/%d/task/*/stack", p.Cmd.Process.Pid), "ib_uverbs_event_read") {
			p.T.Error("does not end")
		}
		p.Kill()
	}
	if p.Err != nil && !strings.Contains(p.Out.String(), "server DISCONNECT EVENT") {
		p.T.Errorf("%v: %v", p.Cmd, p.Err)
	}
}

// TestPingNoPeer makes runs that end before any message is sent.
func TestPingNoPeer(t *testing.T) {
	labtest.RequireLong(t)
	labtest.Each(t, func(t *testing.T, device string) {
		_, verbs := rpingSides(t)
		addr := labtest.AddrOf(device)
		run := func(args ...string) *program {
			side := verbs.with(args...)
			return start(t, side[0], side[1:]...)
		}
		t.Run("refused", func(t *testing.T) {
			run("-c", "-a", addr, "-p", "1").Fails("refused")
		})
		t.Run("no device", func(t *testing.T) {
			run("-c", "-a", "127.0.0.1").Fails("dial 127.0.0.1:7174")
		})
		t.Run("not this machine's", func(t *testing.T) {
			run("-s", "-a", "192.0.2.1").Fails("listen")
		})
		t.Run("interrupted server", func(t *testing.T) {
			rpingPorts++
			port := strconv.Itoa(rpingPorts)
			server := run("-s", "-a", addr, "-p", port)
			labtest.WaitListening(t, port)
			run("-s", "-a", addr, "-p", port).Fails("address already in use")
			server.Signal(os.Interrupt)
			server.Wait() // with success, as it has no other end
		})
	})
}

// TestRpingServerTooSmall sends more to C's server than its -S allows.
func TestRpingServerTooSmall(t *testing.T) {
	labtest.RequireLong(t)
	labtest.Each(t, func(t *testing.T, device string) {
		c, verbs := rpingSides(t)
		_, client := startRping(t, device, c.with("-S", "100"), verbs.with("-S", "10000", "-C", "5"))
		client.Fails("peer disconnected")
	})
}

// TestPingBadClients sends bad messages to a persistent server, which must continue to serve
// other clients.
func TestPingBadClients(t *testing.T) {
	labtest.RequireLong(t)
	labtest.Each(t, func(t *testing.T, device string) {
		_, verbs := rpingSides(t)
		server, join := listenRping(t, device, verbs.with("-P"))
		addr := fmt.Sprintf("%s:%d", labtest.AddrOf(device), rpingPorts)
		spot := func(addr uint64, rkey, size uint32) []byte {
			return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, addr), rkey), size)
		}
		for _, msg := range [][]byte{
			[]byte("hello"),          // not a message of rping
			spot(0x1000, 1, 1<<16),   // more than the server accepts
			spot(0x1000, 0x1234, 64), // not memory of the client
			nil,                      // nothing: connect and leave
		} {
			sendBadPing(t, addr, msg)
		}
		join(verbs.with("-V", "-C", "3")).Wait()
		signalAll(t, []*program{server}, os.Interrupt)
		out := server.Wait()
		for _, want := range []string{"peer sent 5 bytes, not 16", "peer offers 65536 bytes, more than 65535", "RDMA_READ: "} {
			if want == "RDMA_READ: " && labtest.IWARP(t, device) {
				continue // on iWARP the client ends the connection itself
			}
			if strings.Count(out, want) != 1 {
				t.Errorf("no %q in\n%s", want, out)
			}
		}
	})
}

// sendBadPing connects, sends a message, and waits until the server ends the connection;
// without a message it closes the connection itself.
func sendBadPing(t *testing.T, addr string, msg []byte) {
	t.Helper()
	ctx := labtest.Within(t, 20*time.Second)
	e := labtest.Must(cm.Dial(ctx, addr))(t)
	defer e.Close()
	if msg == nil {
		return
	}
	if _, err := e.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: msg}); err != nil {
		t.Fatal(err)
	}
	if err := (&ucmatoseConn{Endpoint: e}).waitDisconnect(ctx); err != nil {
		t.Errorf("after %x: %v", msg, err)
	}
}
