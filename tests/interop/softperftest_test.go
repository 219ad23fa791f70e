package interop

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// perftest is a test of perftest: the name of its program, and what the client posts.
type perftest struct {
	name   string
	opcode verbs.Opcode
	size   int
}

const perftestIters = 100

// testSoftPerftest runs perftest's programs, for which this process is the peer.
func testSoftPerftest(t *testing.T) {
	gid := labtest.Must(labtest.OpenDevice(t, "rxe1").FindGID(1, netip.MustParseAddr(softKernel)))(t)
	for _, p := range softCases(
		perftest{"ib_atomic_bw", verbs.OpFetchAdd, 8},
		perftest{"ib_send_lat", verbs.OpSend, 4096},
		perftest{"ib_write_bw", verbs.OpRDMAWrite, 65536},
		perftest{"ib_read_lat", verbs.OpRDMARead, 65536},
	) {
		args := []string{p.name, "-F", "-d", "rxe1", "-x", strconv.Itoa(gid.Index), "-n", strconv.Itoa(perftestIters)}
		if p.opcode != verbs.OpFetchAdd {
			args = append(args, "-s", strconv.Itoa(p.size))
		}
		t.Run(p.name+"/Go server", func(t *testing.T) {
			l := labtest.Must(net.ListenTCP("tcp4", &net.TCPAddr{IP: net.ParseIP(softSelf)}))(t)
			defer l.Close()
			labtest.Check(t, l.SetDeadline(time.Now().Add(time.Minute)))
			client := startC(t, append(args, "-p", strconv.Itoa(l.Addr().(*net.TCPAddr).Port), softSelf)...)
			labtest.Check(t, p.run(t, labtest.Must(l.Accept())(t), false))
			client.Wait()
		})
		t.Run(p.name+"/Go client", func(t *testing.T) {
			pingpongPorts++
			port := strconv.Itoa(pingpongPorts)
			server := startC(t, append(args, "-p", port)...)
			server.ListensTCP(pingpongPorts)
			labtest.Check(t, p.run(t, labtest.Must(net.Dial("tcp4", net.JoinHostPort(softKernel, port)))(t), true))
			server.Wait()
		})
	}
}

// perftestPeer is a side of perftest. Each step of both sides ends with an exchange of messages of
// the same size: the client writes first. Most messages are the address of the QP.
type perftestPeer struct {
	perftest
	client bool
	conn   net.Conn
	qp     *uverbs.QP
	cq     *uverbs.CQ
	mr     *uverbs.MR
	local  verbs.QPAddr
	remote verbs.QPAddr
	key    uint32 // of the peer's memory
	addr   uint64
}

// run runs a test and closes the connection.
func (p perftest) run(t *testing.T, conn net.Conn, client bool) error {
	ctx := timeLimit(t)
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	device := labtest.OpenDevice(t, "self")
	ch := labtest.Made(device.CreateCompChannel())(t)
	pd := labtest.Made(device.AllocPD())(t)
	s := &perftestPeer{perftest: p, client: client, conn: conn}
	s.mr = labtest.Made(pd.AllocMR(max(p.size, 4096), verbs.AccessAll, uverbs.MROptions{}))(t)
	s.cq = labtest.Made(device.CreateCQ(uverbs.CQOptions{Depth: 2 * perftestIters, Channel: ch}))(t)
	s.qp = labtest.Made(pd.CreateQP(uverbs.QPOptions{
		SendCQ: s.cq, RecvCQ: s.cq, Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: perftestIters, MaxSendSGE: 1, MaxRecvSGE: 1},
	}))(t)
	var err error
	if s.local, err = s.qp.Addr(1); err != nil {
		return err
	}
	mtu := labtest.Must(device.QueryPort(1))(t).ActiveMTU

	// exchange_versions, check_sys_data and check_mtu. From version 6.28 there is more.
	version := make([]byte, 16)
	copy(version, "5.97")
	for _, message := range [][]byte{version, make([]byte, 4), make([]byte, 4), {'0' + byte(mtu), 0}} {
		if _, err := s.exchange(message); err != nil {
			return err
		}
	}
	keys := 1
	if p.opcode == verbs.OpRDMARead {
		keys++
	}
	if err := s.exchangeKeys(keys); err != nil {
		return err
	}
	err = s.qp.Connect(s.local, s.remote, uverbs.ConnectOptions{Access: verbs.AccessAll, PathMTU: mtu})
	if err != nil {
		return err
	}
	if p.opcode == verbs.OpSend {
		for range perftestIters {
			if _, err := s.qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{s.mr.SGE(0, p.size)}}); err != nil {
				return err
			}
		}
		err = errors.Join(s.exchangeKeys(3), s.pingPong(ctx))
	} else if err = s.exchangeKeys(2); err == nil && client {
		err = s.post(ctx)
	}
	if err == nil && (p.opcode == verbs.OpRDMAWrite || p.opcode == verbs.OpFetchAdd) { // xchg_bw_reports
		err = s.exchangeKeys(1)
		for range 5 {
			_, xerr := s.exchange(make([]byte, 8))
			err = errors.Join(err, xerr)
		}
	}
	if err := errors.Join(err, s.exchangeKeys(1)); err != nil {
		return err
	}
	io.WriteString(conn, "done\x00") // the peer may have closed the connection
	io.Copy(io.Discard, conn)
	return s.check()
}

// exchange sends a message and receives one of the same size.
func (s *perftestPeer) exchange(message []byte) (received []byte, err error) {
	received = make([]byte, len(message))
	send := func() error { _, err := s.conn.Write(message); return err }
	receive := func() error { _, err := io.ReadFull(s.conn, received); return err }
	steps := []func() error{receive, send}
	if s.client {
		slices.Reverse(steps)
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, fmt.Errorf("exchange %d bytes with perftest: %w", len(message), err)
		}
	}
	return received, nil
}

// exchangeKeys exchanges the addresses of QPs and memory some times (ctx_hand_shake).
func (s *perftestPeer) exchangeKeys(times int) error {
	const size = 108
	for range times {
		message := make([]byte, size)
		text := fmt.Sprintf("%04x:%04x:%06x:%06x:%08x:%016x:", 0, 16, s.local.QPNum, s.local.PSN, s.mr.RKey(), s.mr.Addr())
		for _, b := range s.local.GID {
			text += fmt.Sprintf("%02x:", b)
		}
		copy(message, text+"00000000:")
		received, err := s.exchange(message)
		if err != nil {
			return err
		}
		fields := strings.Split(string(bytes.TrimRight(received, "\x00")), ":")
		if len(fields) < 22 {
			return fmt.Errorf("keys %q", received)
		}
		field := func(i, bits int) uint64 {
			n, perr := strconv.ParseUint(fields[i], 16, bits)
			err = errors.Join(err, perr)
			return n
		}
		s.remote.QPNum, s.remote.PSN = uint32(field(2, 24)), uint32(field(3, 24))
		s.key, s.addr = uint32(field(4, 32)), field(5, 64)
		for i := range s.remote.GID {
			s.remote.GID[i] = byte(field(6+i, 8))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pingPong exchanges SENDs; the client is the first.
func (s *perftestPeer) pingPong(ctx context.Context) error {
	send := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{s.mr.SGE(0, s.size)}}
	for received, sent := 0, 0; received < perftestIters || sent < perftestIters; {
		if sent < perftestIters && (s.client && received == sent || received > sent) {
			if _, err := s.qp.PostSend(send); err != nil {
				return err
			}
			sent++
		}
		wc, err := s.cq.Next(ctx)
		if err := errors.Join(err, wc.Err()); err != nil {
			return fmt.Errorf("%d received, %d sent: %w", received, sent, err)
		}
		if wc.Opcode == verbs.WCRecv {
			received++
			if int(wc.ByteLen) != s.size {
				return fmt.Errorf("received %d bytes, not %d", wc.ByteLen, s.size)
			}
		}
	}
	return nil
}

// post posts the client's requests, up to 16 at a time. A FETCH_AND_ADD returns what the one before
// it has stored.
func (s *perftestPeer) post(ctx context.Context) error {
	var last uint64
	for posted, completed := 0, 0; completed < perftestIters; {
		for ; posted < perftestIters && posted-completed < 16; posted++ {
			sge := s.mr.SGE(0, s.size)
			if s.opcode == verbs.OpFetchAdd {
				sge = s.mr.SGE(posted%16*8, 8)
			}
			if _, err := s.qp.PostSend(verbs.SendWR{
				ID: uint64(posted), Opcode: s.opcode, Flags: verbs.SendSignaled, SGL: []verbs.SGE{sge},
				RemoteAddr: s.addr, RKey: s.key, Args: &verbs.SendArgs{CompareAdd: 1},
			}); err != nil {
				return err
			}
		}
		wc, err := s.cq.Next(ctx)
		if err := errors.Join(err, wc.Err()); err != nil {
			return fmt.Errorf("%v %d: %w", s.opcode, completed, err)
		}
		if s.opcode == verbs.OpFetchAdd {
			value := binary.NativeEndian.Uint64(s.mr.Bytes()[wc.ID%16*8:])
			if completed > 0 && value != last+1 {
				return fmt.Errorf("FETCH_AND_ADD %d returned %#x after %#x", completed, value, last)
			}
			last = value
		}
		completed++
	}
	return nil
}

// check checks the memory: perftest sends and writes random data, and adds 1.
func (s *perftestPeer) check() error {
	data := s.mr.Bytes()
	switch {
	case s.opcode != verbs.OpFetchAdd:
		if (s.opcode == verbs.OpSend || (s.opcode == verbs.OpRDMARead) == s.client) && bytes.Count(data[:s.size], []byte{0}) > s.size/2 {
			return errors.New("the memory has no data of the peer")
		}
	case !s.client:
		sum := uint64(0)
		for ; len(data) > 0; data = data[8:] {
			sum += binary.NativeEndian.Uint64(data)
		}
		if sum != perftestIters {
			return fmt.Errorf("the peer has added %d", sum)
		}
	}
	return nil
}
