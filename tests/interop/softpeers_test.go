package interop

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/tests/interop/pingpong"
)

type softTest struct {
	name string
	run  func(t *testing.T)
}

// softTests are the tests of TestSoft. Some of the first three also run on an impaired link.
var softTests = []softTest{
	{"pingpong", testSoftPingPong},
	{"rping", testSoftRping},
	{"rstream", testSoftRstream},
	{"ucmatose", testSoftUcmatose},
	{"udaddy", testSoftUdaddy},
	{"mckey", testSoftMckey},
	{"preload", testSoftPreload},
	{"rdma_client", testSoftRDMAClient},
	{"short", testSoftShort},
	{"perftest", testSoftPerftest},
}

// impaired reports whether the test runs on an impaired link, where UC and UD lose messages.
func impaired(t *testing.T) bool { return !strings.Contains(t.Name(), "/unimpaired/") }

// testSoftPingPong exchanges messages whose data both sides check.
func testSoftPingPong(t *testing.T) {
	pair := pingpongPair{labtest.OpenDevice(t, "self"), softSelf, softKernel, startC, "rxe1"}
	type kind struct {
		typ   string
		sizes []int
	}
	for _, r := range softCases(
		kind{"rc", softCases(65536, 1)},
		kind{"srq", []int{4096}}, // on 16 QPs: rxe overruns an emulated machine with larger ones
		kind{"uc", []int{1, 65536}},
		kind{"ud", []int{1024}},
	) {
		if impaired(t) && r.typ[0] == 'u' {
			break
		}
		for _, size := range r.sizes {
			o := pingpong.Options{Type: r.typ, Size: size, Iters: pingpongIters, Events: true}
			pair.test(t, false, o)
			// On Linux 7.3, messages of two rxe devices stop when packets are lost while the client
			// polls.
			o.Events = impaired(t)
			pair.test(t, true, o)
		}
	}
}

func testSoftRping(t *testing.T)      { softRping(t, softCases("65535", "64")...) }
func testSoftSmallRping(t *testing.T) { softRping(t, "64") }

// softRping runs rping's protocol: SEND, RDMA READ and WRITE, with data that clients check.
func softRping(t *testing.T, sizes ...string) {
	for _, size := range sizes {
		client := func(addr string) []string {
			return []string{"-c", "-V", "-S", size, "-C", "20", "-a", addr, "-p", strconv.Itoa(rpingPorts)}
		}
		server := func(addr string) []string {
			rpingPorts++
			return []string{"-s", "-S", size, "-a", addr, "-p", strconv.Itoa(rpingPorts)}
		}
		t.Run(size+" bytes/C server", func(t *testing.T) {
			s := startC(t, append([]string{"rping"}, server(softKernel)...)...)
			labtest.WaitListening(t, strconv.Itoa(rpingPorts))
			startVerbs(t, append([]string{"ping"}, client(softKernel)...)...).Wait()
			s.Wait()
		})
		t.Run(size+" bytes/Go server", func(t *testing.T) {
			s := startVerbs(t, append([]string{"ping"}, server(softProgram)...)...)
			<-s.Printed
			startC(t, append([]string{"rping"}, client(softProgram)...)...).Wait()
			s.Wait()
		})
	}
}

// listenSoft listens for rsockets on a port of its own.
func listenSoft(t *testing.T) (l net.Listener, port string) {
	t.Helper()
	rsPorts++
	port = strconv.Itoa(rsPorts)
	l = labtest.Must(rsock.Listen("rdma", net.JoinHostPort(softSelf, port)))(t)
	t.Cleanup(func() { l.Close() })
	return l, port
}

func testSoftRstream(t *testing.T) {
	for _, r := range softCases(
		rstream{2, 2, 1 << 20, true, nil},
		rstream{10, 50, 5000, true, []string{"-T", "b"}},
		rstream{100, 1, 1, true, nil},
	) {
		name := fmt.Sprintf("%dx%d of %d", r.rounds, r.count, r.size)
		t.Run(name+"/C client", func(t *testing.T) {
			l, port := listenSoft(t)
			client := startC(t, append([]string{"rstream", "-s", softSelf, "-p", port}, r.options()...)...)
			labtest.Check(t, r.run(client.acceptFrom(l), true))
			client.Wait()
		})
		t.Run(name+"/C server", func(t *testing.T) {
			rsPorts++
			port := strconv.Itoa(rsPorts)
			server := startC(t, append([]string{"rstream", "-b", softKernel, "-p", port}, r.options()...)...)
			labtest.WaitListening(t, port)
			conn := labtest.Must((&rsock.Dialer{}).DialContext(timeLimit(t), "rdma", net.JoinHostPort(softKernel, port)))(t)
			labtest.Check(t, r.run(conn, false))
			server.Wait()
		})
	}
}

func testSoftUcmatose(t *testing.T) {
	for i, c := range softCases(ucmatose{20, 10, 100}, ucmatose{1, 10, 100}, ucmatose{3, 100, 20000}, ucmatose{5, 0, 1}) {
		port := strconv.Itoa(7450 + i)
		t.Run(fmt.Sprintf("Go server/%+v", c), func(t *testing.T) {
			ctx := timeLimit(t)
			l := labtest.Made(cm.Listen(ctx, softSelf+":"+port))(t)
			client := startC(t, append([]string{"ucmatose"}, c.args(port, "-s", softSelf)...)...)
			labtest.Check(t, c.serve(ctx, l))
			client.Wait()
		})
		t.Run(fmt.Sprintf("Go client/%+v", c), func(t *testing.T) {
			server := startC(t, append([]string{"ucmatose"}, c.args(port, "-b", softKernel)...)...)
			labtest.WaitListening(t, port)
			labtest.Check(t, c.join(timeLimit(t), softKernel+":"+port))
			server.Wait()
		})
	}
}

func testSoftUdaddy(t *testing.T) {
	for _, d := range softCases(udaddy{10, 10, 100}, udaddy{1, 10, 100}, udaddy{1, 100, 1024}) {
		t.Run(fmt.Sprintf("Go server/%+v", d), func(t *testing.T) {
			ctx := timeLimit(t)
			l := labtest.Made((&cm.ListenConfig{PortSpace: cm.PortSpaceUDP}).Listen(ctx, softSelf+":"+udaddyPort))(t)
			client := startC(t, append([]string{"udaddy"}, d.args("-s", softSelf)...)...)
			labtest.Check(t, d.serve(ctx, l))
			client.Wait()
		})
		t.Run(fmt.Sprintf("Go client/%+v", d), func(t *testing.T) {
			server := startC(t, append([]string{"udaddy"}, d.args("-b", softKernel)...)...)
			labtest.WaitListening(t, udaddyPort)
			labtest.Check(t, d.join(timeLimit(t), softKernel+":"+udaddyPort))
			server.Wait()
		})
	}
}

// testSoftMckey sends multicast datagrams to C, and receives those of C.
func testSoftMckey(t *testing.T) {
	const group = "239.1.2.3"
	ctx := timeLimit(t)
	m, dg, err := member(ctx, t, softSelf, group, false)
	labtest.Check(t, err)
	t.Run("C sender", func(t *testing.T) {
		received := make(chan error, 1)
		go func() { received <- mckeyReceive(ctx, dg) }()
		sender := startC(t, "mckey", "-s", "-m", group, "-b", softKernel, "-c", "20")
		labtest.Check(t, <-received)
		sender.Wait()
	})
	t.Run("C receiver", func(t *testing.T) {
		receiver := startC(t, "mckey", "-m", group, "-b", softKernel)
		for {
			labtest.Check(t, dg.SendImm(ctx, m.Peer, make([]byte, mckeySize), m.QP.Num()))
			select {
			case <-receiver.Done:
				receiver.Wait()
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
}

// testSoftPreload fetches a file with a program that uses C's rsockets for TCP.
func testSoftPreload(t *testing.T) {
	file := noise(1, 1<<20+12345)
	l, port := listenSoft(t)
	server := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "file", time.Time{}, bytes.NewReader(file))
	})}
	defer server.Close()
	go server.Serve(l)
	preloadIPv4(t)
	out := filepath.Join(t.TempDir(), "out")
	startC(t, "env", preload, "timeout", "100", "curl", "-sS", "-o", out, "http://"+net.JoinHostPort(softSelf, port)+"/").Wait()
	if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, file) {
		t.Errorf("%v, fetched %d bytes of %d, or others", err, len(got), len(file))
	}
}
