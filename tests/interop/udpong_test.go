package interop

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// udpong's operations, the first byte of its messages. The second is the client's number, the third
// the number of a question, which the answer repeats; the first four from the fifth are a count.
const (
	udpongLogin = iota
	udpongStart
	udpongData
	udpongEcho
	udpongEnd
)

// udpongControl is the size of messages other than data and echo.
const udpongControl = 16

// udpongServe is udpong's server for one client: it answers until the client's end, and returns
// the number of messages, of which most may come. C's client repeats a question that is not answered
// soon, and takes an answer to an earlier one for its own question, which it then asks for ever: so
// a question has one answer, unless that seems to be lost. The end goes from QP to QP, and may
// overtake messages by UDP.
func udpongServe(c net.PacketConn, most uint32) (count uint32, err error) {
	var answered time.Time
	last := uint8(0xff) // number of the last question that was answered
	ended := false
	for b := make([]byte, 2048); !ended || count < most; {
		n, from, err := c.ReadFrom(b)
		if ended && errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return count, err
		}
		if n < udpongControl {
			return count, fmt.Errorf("message of %d bytes", n)
		}
		switch b[0] {
		case udpongData:
			count++
			continue
		case udpongEcho:
			count++
		case udpongEnd:
			b[4], b[5], b[6], b[7] = byte(count>>24), byte(count>>16), byte(count>>8), byte(count)
		}
		if later := int8(b[2] - last); later < 0 || later == 0 && time.Since(answered) < 10*time.Second {
			continue
		}
		if _, err := c.WriteTo(b[:n], from); err != nil {
			return count, err
		}
		last, answered = b[2], time.Now()
		if b[0] == udpongEnd {
			ended = true
			c.SetReadDeadline(time.Now().Add(time.Second))
		}
	}
	return count, nil
}

// udpongSession is udpong's client: it sends count messages of a size, each after the answer to
// the last if echo is set, and returns how many the server has got.
func udpongSession(c net.PacketConn, server net.Addr, echo bool, count, size int) (got uint32, err error) {
	msg := make([]byte, size)
	for i := range msg[udpongControl:] {
		msg[udpongControl+i] = byte(i)
	}
	ask := func(op byte, size int) error {
		msg[0] = op
		msg[2]++
		b := make([]byte, 2048)
		for {
			if _, err := c.WriteTo(msg[:size], server); err != nil {
				return err
			}
			c.SetReadDeadline(time.Now().Add(time.Second))
			n, from, err := c.ReadFrom(b)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				continue
			}
			if err != nil {
				return err
			}
			if n != size || from.String() != server.String() || !bytes.Equal(b[udpongControl:n], msg[udpongControl:size]) {
				return fmt.Errorf("answer of %d bytes from %v", n, from)
			}
			if b[2] == msg[2] { // not to an earlier one
				copy(msg[:8], b)
				return nil
			}
		}
	}
	for _, op := range []byte{udpongLogin, udpongStart} {
		if err := ask(op, udpongControl); err != nil {
			return 0, err
		}
	}
	for range count {
		if echo {
			err = ask(udpongEcho, size)
		} else {
			msg[0] = udpongData
			_, err = c.WriteTo(msg, server)
		}
		if err != nil {
			return 0, err
		}
	}
	err = ask(udpongEnd, udpongControl)
	return uint32(msg[4])<<24 | uint32(msg[5])<<16 | uint32(msg[6])<<8 | uint32(msg[7]), err
}

var udpongPreload = compile("udpong.so", "-shared", "-fPIC", "testdata/udpong.c", "-libverbs", "-ldl")

// TestUdpongAlone shows that C's datagram rsockets do not work on RoCE, also between two C
// programs: the reason for ibv_create_ah in testdata/udpong.c.
func TestUdpongAlone(t *testing.T) {
	labtest.RequireLong(t)
	host := labtest.Addr
	start(t, "udpong", "-b", host, "-p", "7300")
	client := start(t, "udpong", "-s", host, "-p", "7300", "-C", "10")
	<-client.Done
	if client.Err == nil || !strings.Contains(client.Out.String(), "rconnect: ") {
		t.Errorf("udpong works: ibv_create_ah of testdata/udpong.c is not needed any more. %v: %s", client.Err, &client.Out)
	}
}

// TestUdpong exchanges datagrams with C's udpong on either side. Some may get lost if the
// receiver is slower.
func TestUdpong(t *testing.T) {
	labtest.RequireKernel(t)
	host, port := labtest.Addr, 7300
	t.Setenv("LD_PRELOAD", labtest.Must(udpongPreload())(t))
	const count = 300
	check := func(t *testing.T, echo bool, got uint32, err error) {
		t.Helper()
		if err != nil || got < 50 || echo && got < count {
			t.Errorf("%d of %d messages, %v", got, count, err)
		}
	}
	for _, echo := range []bool{true, false} {
		var mode []string
		if echo {
			mode = []string{"-T", "e"}
		}
		t.Run(fmt.Sprintf("C client, echo %v", echo), func(t *testing.T) {
			port++
			c := labtest.Must(rsock.ListenPacket("rdma", net.JoinHostPort(host, strconv.Itoa(port))))(t)
			defer c.Close()
			c.SetDeadline(time.Now().Add(40 * time.Second))
			client := start(t, "udpong", append(mode, "-s", host, "-p", strconv.Itoa(port), "-C", strconv.Itoa(count), "-S", "1000")...)
			got, err := udpongServe(c, count)
			check(t, echo, got, err)
			t.Log(client.Wait())
		})
		t.Run(fmt.Sprintf("C server, echo %v", echo), func(t *testing.T) {
			port++
			server := start(t, "udpong", append(mode, "-b", host, "-p", strconv.Itoa(port))...)
			c := labtest.Must(rsock.ListenPacket("rdma", host+":0"))(t)
			defer c.Close()
			c.SetDeadline(time.Now().Add(40 * time.Second))
			got, err := udpongSession(c, labtest.Must(net.ResolveUDPAddr("udp", net.JoinHostPort(host, strconv.Itoa(port))))(t), echo, count, 1000)
			check(t, echo, got, err)
			server.Kill()
		})
	}
}
