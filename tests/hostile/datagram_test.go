package hostile

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// spoofer sends datagrams with false source addresses to rxe0.
type spoofer struct {
	fd       int
	frame    []byte // up to the IPv4 header
	qp, qkey uint32 // of the receiver
}

func newSpoofer(t *testing.T, e *cm.Endpoint) *spoofer {
	t.Helper()
	to, via := labtest.Must(net.InterfaceByName("v0"))(t), labtest.Must(net.InterfaceByName("v1"))(t)
	s := &spoofer{qp: e.QP.Num(), qkey: labtest.Must(e.QP.Query())(t).QKey}
	s.frame = append(append(append(s.frame, to.HardwareAddr...), via.HardwareAddr...), 0x08, 0x00)
	s.fd = labtest.Must(unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0))(t)
	t.Cleanup(func() { unix.Close(s.fd) })
	labtest.Check(t, unix.Bind(s.fd, &unix.SockaddrLinklayer{Ifindex: via.Index}))
	return s
}

// send sends a RoCE v2 packet: IPv4, UDP, BTH, DETH, data, ICRC.
func (s *spoofer) send(from netip.Addr, number uint32, data string) error {
	data += "   "[:-len(data)&3]
	b := make([]byte, 20+8+12+8, 256)
	ip, udp, bth, deth := b[:20], b[20:28], b[28:40], b[40:48]
	b = append(b, data...)
	copy(ip, []byte{0: 0x45, 6: 0x40, 8: 64, 9: unix.IPPROTO_UDP})
	binary.BigEndian.PutUint16(ip[2:], uint16(len(b)+4))
	copy(ip[12:], from.AsSlice())
	copy(ip[16:], netip.MustParseAddr(labtest.AddrOf(labtest.RXE)).AsSlice())
	binary.BigEndian.PutUint16(udp, 0xc000)
	binary.BigEndian.PutUint16(udp[2:], 4791)
	binary.BigEndian.PutUint16(udp[4:], uint16(len(b)+4-20))
	binary.BigEndian.PutUint32(bth, 0x64<<24|0xffff) // UD SEND only, the default P_Key
	binary.BigEndian.PutUint32(bth[4:], s.qp)
	binary.BigEndian.PutUint32(bth[8:], number)
	binary.BigEndian.PutUint32(deth, s.qkey)
	binary.BigEndian.PutUint32(deth[4:], 1000+number&0xff)

	// The ICRC covers a masked LRH and the fields that routers do not change.
	masked := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, b...)
	for _, i := range []int{1, 8, 10, 11, 26, 27, 32} {
		masked[8+i] = 0xff
	}
	b = binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(masked))
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	_, err := unix.Write(s.fd, append(s.frame[:14:14], b...))
	return err
}

// datagrams returns a server of datagrams and a client of it, each with its own protection
// domain.
func datagrams(t *testing.T, receives int) (client, server *cm.Datagrams, c, s *cm.Endpoint) {
	t.Helper()
	ctx := labtest.Within(t, waitTimeout)
	options := func(d **cm.Datagrams) cm.Options {
		return cm.Options{
			Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: receives, MaxSendSGE: 1, MaxRecvSGE: 1},
			Setup: func(e *cm.Endpoint) (err error) {
				*d, err = cm.NewDatagrams(e, 32)
				return err
			},
		}
	}
	c, s = labtest.ConnectIn(ctx, t, cm.PortSpaceUDP, labtest.AddrOf(labtest.RXE)+":0", options(&client), options(&server))
	labtest.Close(t, c)
	labtest.Close(t, s)
	return client, server, c, s
}

// TestSpoofedDatagrams sends a server a thousand datagrams a second from one or many
// addresses that do not exist: the server must receive and answer every datagram of a good
// client.
func TestSpoofedDatagrams(t *testing.T) {
	labtest.RequireKernel(t) // sends frames to its interface
	for _, test := range []struct {
		name string
		from func(i int) netip.Addr
	}{
		{"one sender", func(int) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, 0, 77}) }},
		{"many senders", func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, 0, byte(20 + i%200)}) }},
		{"from anywhere", func(i int) netip.Addr { return netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			client, server, c, s := datagrams(t, 4096)
			spoofer := newSpoofer(t, s)
			stop, flood := make(chan struct{}), make(chan error, 1)
			go func() { flood <- spoofer.flood(stop, test.from) }()
			defer func() {
				close(stop)
				if err := <-flood; err != nil {
					t.Error(err)
				}
			}()
			ctx := labtest.Within(t, waitTimeout)
			here := netip.MustParseAddr(labtest.AddrOf(labtest.RXE)) // others may have the client's QP number
			const good, most = 100, 50 * time.Millisecond
			go func() {
				for i := range good {
					if err := client.Send(ctx, c.Peer, fmt.Appendf(nil, "good %d", i)); err != nil {
						t.Error(err)
						return
					}
					time.Sleep(10 * time.Millisecond)
				}
			}()
			spoofed, late, calls, buf := 0, 0, 0, make([]byte, 32)
			for got := 0; got < good; calls++ {
				brief, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
				start := time.Now()
				m, err := server.Recv(brief, buf)
				if time.Since(start) > most {
					late++
				}
				cancel()
				switch {
				case ctx.Err() != nil:
					t.Fatalf("%d of %d came from the client, and %d spoofed", got, good, spoofed)
				case errors.Is(err, context.DeadlineExceeded):
				case err != nil:
					t.Fatalf("receive: %v", err)
				case m.From.Addr() != here || m.From.QPNum != c.QP.Num():
					spoofed++
				case string(buf[:m.Len]) != fmt.Sprintf("good %d", got):
					t.Fatalf("%q came from the client, after %d", buf[:m.Len], got)
				default:
					got++
					labtest.Check(t, server.Reply(ctx, m.From, buf[:m.Len]))
					if m, err := client.Recv(ctx, make([]byte, 32)); err != nil || m.Len == 0 {
						t.Fatal(m.Len, err)
					}
				}
			}
			t.Logf("%d spoofed, %d receives of which %d took longer than %v", spoofed, calls, late, most)
			if spoofed < good {
				t.Errorf("%d spoofed datagrams came beside %d others", spoofed, good)
			}
			if late > calls/20 { // the machine may be busy sometimes
				t.Errorf("%d of %d receives with 10 ms took longer than %v", late, calls, most)
			}
		})
	}
}

// flood sends a thousand datagrams a second.
func (s *spoofer) flood(stop <-chan struct{}, from func(int) netip.Addr) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; {
		select {
		case <-stop:
			return nil
		case <-tick.C:
		}
		for range 10 {
			if err := s.send(from(i), uint32(i), "spoofed"); err != nil {
				return err
			}
			i++
		}
	}
}

// TestAnswerToSpoofed answers senders that do not exist: the answers must fail, or end with
// their contexts, and not delay anything else.
func TestAnswerToSpoofed(t *testing.T) {
	labtest.RequireKernel(t) // sends frames to its interface
	client, server, c, s := datagrams(t, 1024)
	spoofer := newSpoofer(t, s)
	ctx := labtest.Within(t, waitTimeout)
	receive := func() cm.Sender {
		t.Helper()
		return labtest.Must(server.Recv(ctx, make([]byte, 32)))(t).From
	}
	var senders []cm.Sender
	for i := range 200 { // more than are resolved concurrently
		labtest.Check(t, spoofer.send(netip.AddrFrom4([4]byte{10, 9, 0, byte(20 + i)}), uint32(i), "spoofed"))
		senders = append(senders, receive())
	}
	err := server.Reply(ctx, senders[0], []byte("answer"))
	if !errors.Is(err, unix.ETIMEDOUT) && !errors.Is(err, unix.EHOSTUNREACH) {
		t.Errorf("an answer to %v: %v", senders[0].Addr(), err)
	}
	labtest.Check(t, client.Send(ctx, c.Peer, []byte("first")))
	good := receive()
	labtest.Check(t, server.Reply(ctx, good, []byte("answer")))

	// Answers to strangers are canceled one after the other, and continue in the background.
	for _, from := range senders[1:60] {
		brief, cancel := context.WithTimeout(ctx, time.Millisecond)
		if err := server.Reply(brief, from, []byte("answer")); err == nil {
			t.Errorf("an answer to %v was sent", from.Addr())
		}
		cancel()
	}
	hung := make(chan error)
	for _, from := range senders {
		go func() { hung <- server.Reply(ctx, from, []byte("answer")) }()
	}
	for i := range 20 {
		labtest.Check(t, client.Send(ctx, c.Peer, []byte("more")))
		if from := receive(); from != good {
			t.Errorf("the client is %+v", from)
		}
		if err := server.Reply(ctx, good, []byte("answer")); err != nil {
			t.Errorf("answer %d to the client: %v", i, err)
		}
	}
	if err := s.Close(); err != nil { // with answers pending
		t.Error(err)
	}
	for range senders {
		if err := <-hung; err == nil {
			t.Error("an answer to a stranger was sent")
		}
	}
}
