package hosts

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/rpc"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// The emulated adapter of each machine, and its addresses.
const (
	adapter      = "mlx5_0"
	adapterAddr  = "10.9.2.%d"
	adapterAddr6 = "fd00:9:2::%d"
)

// dialTwin is dialPeer for two machines with adapters, which are on one wire.
func dialTwin(t *testing.T) *peer {
	t.Helper()
	p := dialPeer(t)
	if _, err := os.Stat("/sys/class/infiniband/" + adapter); err != nil {
		t.Skip("needs adapters: run by make hosts, or with LAB_NIC=connectx")
	}
	return p
}

// TestConnectXPing sends ICMP echo requests by the adapters' network links, also in fragments.
func TestConnectXPing(t *testing.T) {
	dialTwin(t)
	to := &net.IPAddr{IP: net.ParseIP(fmt.Sprintf(adapterAddr, 2))}
	conn := labtest.Must(net.ListenIP("ip4:icmp", &net.IPAddr{IP: net.ParseIP(fmt.Sprintf(adapterAddr, 1))}))(t)
	defer conn.Close()
	for seq, size := range []int{0, 56, 1472, 6000} {
		const echo, reply = 8, 0
		msg := make([]byte, 8+size)
		msg[0] = echo
		binary.BigEndian.PutUint16(msg[4:], uint16(os.Getpid()))
		binary.BigEndian.PutUint16(msg[6:], uint16(seq))
		for i := range size {
			msg[8+i] = byte(i * 7)
		}
		binary.BigEndian.PutUint16(msg[2:], ^onesSum(msg))
		conn.SetDeadline(time.Now().Add(workTimeout))
		labtest.Must(conn.WriteTo(msg, to))(t)
		for got := make([]byte, 1<<16); ; {
			n, from, err := conn.ReadFrom(got)
			if err != nil {
				t.Fatalf("%d bytes: no answer: %v", size, err)
			}
			if from.String() == to.String() && n >= 8 && got[0] == reply && bytes.Equal(got[4:8], msg[4:8]) {
				if !bytes.Equal(got[8:n], msg[8:]) {
					t.Errorf("%d bytes: the answer has others", size)
				}
				break
			}
		}
	}
}

// onesSum is the Internet checksum without its complement.
func onesSum(b []byte) uint16 {
	var s uint32
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// Echo makes the peer send back what it receives by one connection of TCP to an address, of which
// it returns the port.
func (*Peer) Echo(host string, at *string) error {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return err
	}
	go func() {
		defer l.Close()
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) // not by splice, to touch each byte
	}()
	*at = l.Addr().String()
	return nil
}

// TestConnectXTCP sends data both ways at once by TCP, whose checksums and segments are made by the
// adapters.
func TestConnectXTCP(t *testing.T) {
	p := dialTwin(t)
	size := int64(16 << 20)
	if testing.Short() {
		size = 8 << 20
	}
	for _, host := range []string{adapterAddr, adapterAddr6} {
		var at string
		p.call(t, "Echo", fmt.Sprintf(host, 2), &at)
		c := labtest.Must(net.Dial("tcp", at))(t)
		defer c.Close()
		c.SetDeadline(time.Now().Add(workTimeout))
		began := time.Now()
		sent := make(chan [sha256.Size]byte, 1)
		go func() {
			h := sha256.New()
			data := io.LimitReader(rand.NewChaCha8([32]byte{1}), size)
			if _, err := io.Copy(io.MultiWriter(h, c), data); err != nil {
				t.Error(err)
			}
			c.(*net.TCPConn).CloseWrite()
			sent <- [sha256.Size]byte(h.Sum(nil))
		}()
		h := sha256.New()
		n, err := io.Copy(h, c)
		labtest.Check(t, err)
		if sum := <-sent; n != size || !bytes.Equal(h.Sum(nil), sum[:]) {
			t.Errorf("%s: %d bytes came back, which are not those that were sent, %d", at, n, size)
		}
		t.Logf("%s: %.1f MB/s both ways", at, float64(size)/1e6/time.Since(began).Seconds())
	}
	checkTCP(t, p)
}

// TestConnectXIperf sends by TCP each way as fast as it can for some seconds.
func TestConnectXIperf(t *testing.T) {
	p := dialTwin(t)
	if testing.Short() {
		t.Skip("takes long")
	}
	const port = "5201"
	for _, format := range []string{adapterAddr, adapterAddr6} {
		host := fmt.Sprintf(format, 2)
		for _, way := range []string{"--no-delay", "--reverse", "--bidir"} {
			served := p.start(t, 2, "iperf3", "-s", "-1", "-p", port)
			p.awaitTCP(t, 2, port)
			out := p.run(t, 1, "iperf3", "-c", host, "-p", port, "-t", "3", "-J", way)
			served()
			type sum struct {
				Bytes float64
				Rate  float64 `json:"bits_per_second"`
			}
			var r struct {
				End struct {
					There sum `json:"sum_received"`
					Back  sum `json:"sum_received_bidir_reverse"`
				}
			}
			labtest.Check(t, json.Unmarshal([]byte(out), &r))
			if r.End.There.Bytes < 1e6 || way == "--bidir" && r.End.Back.Bytes < 1e6 {
				t.Errorf("iperf3 has moved less than a megabyte:\n%s", out)
			}
			t.Logf("%s %s: %.1f MB/s, back %.1f", host, way, r.End.There.Rate/8e6, r.End.Back.Rate/8e6)
		}
	}
	checkTCP(t, p)
}

// checkTCP checks that all segments had the right checksum.
func checkTCP(t *testing.T, p *peer) {
	t.Helper()
	for host := 1; host <= 2; host++ {
		if n := snmp(p.run(t, host, "cat", "/proc/net/snmp"), "Tcp", "InCsumErrors"); n != "0" {
			t.Errorf("host %d has received %q segments with wrong checksums", host, n)
		}
	}
}

// snmp returns a counter of /proc/net/snmp.
func snmp(text, protocol, name string) string {
	var names []string
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if f[0] != protocol+":" {
			continue
		}
		if names == nil {
			names = f
			continue
		}
		for i := range min(len(f), len(names)) {
			if names[i] == name {
				return f[i]
			}
		}
	}
	return ""
}

// TestConnectXPingpong exchanges messages between C programs by each transport.
func TestConnectXPingpong(t *testing.T) {
	p := dialTwin(t)
	port := 18700
	for _, r := range []struct {
		typ  string
		size int
		args string
	}{{"rc", 65536, ""}, {"rc", 4096, "-e"}, {"uc", 4096, ""}, {"ud", 1024, ""}, {"srq", 4096, ""}} {
		for host := 1; host <= 2; host++ { // the server's
			t.Run(fmt.Sprintf("%s%s, served by host %d", r.typ, r.args, host), func(t *testing.T) {
				port++
				c := append([]string{"sh", "-c", cPingpong, r.typ, adapter, "-c", "-n", fmt.Sprint(10 * cRounds()), "-s", fmt.Sprint(r.size), "-p", fmt.Sprint(port)}, strings.Fields(r.args)...)
				served := p.start(t, host, c...)
				p.awaitTCP(t, host, fmt.Sprint(port))
				connected := p.start(t, 3-host, append(c, fmt.Sprintf(adapterAddr, host))...)
				for _, out := range []string{connected(), served()} {
					if strings.Contains(out, "invalid data") || !strings.Contains(out, "usec/iter") {
						t.Errorf("%s", out)
					}
				}
			})
		}
	}
}

// TestConnectXCM connects C programs by the connection manager of the kernel.
func TestConnectXCM(t *testing.T) {
	p := dialTwin(t)
	for _, r := range []struct{ program, port, server, client string }{
		{"rping", "7174", "-s", "-c -a"},
		{"ucmatose", "7471", "", "-s"},
		{"udaddy", "7174", "", "-s"},
	} {
		for host := 1; host <= 2; host++ { // the server's
			t.Run(fmt.Sprintf("%s, served by host %d", r.program, host), func(t *testing.T) {
				c := []string{r.program, "-C", fmt.Sprint(cRounds()), "-S", "3000"}
				if r.program == "rping" {
					c = append(c, "-V") // compares
				} else if r.program == "udaddy" {
					c[len(c)-1] = "1000" // the MTU is 1024
				}
				served := p.start(t, host, append(slices.Clone(c), strings.Fields(r.server)...)...)
				p.awaitCM(t, host, r.port)
				connected := p.start(t, 3-host, append(append(c, strings.Fields(r.client)...), fmt.Sprintf(adapterAddr, host))...)
				connected()
				served()
			})
		}
	}
}

// TestConnectXMulticast sends datagrams to a group that the peer has joined.
func TestConnectXMulticast(t *testing.T) {
	p := dialTwin(t)
	mckey := func(host int) []string {
		return []string{"mckey", "-m", "239.1.1.1", "-b", fmt.Sprintf(adapterAddr, host), "-C", fmt.Sprint(cRounds())}
	}
	var id int
	p.call(t, "Start", mckey(2), &id)
	var out string
	receiver := p.rpc.Go("Peer.Wait", id, &out, make(chan *rpc.Call, 1))
	for {
		// What is sent before the peer has joined is lost.
		p.run(t, 1, append(mckey(1), "-s")...)
		select {
		case <-receiver.Done:
			labtest.Check(t, receiver.Error)
			return
		default:
		}
	}
}
