package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

const (
	maxSessions  = 256              // connections, each with one transfer at a time
	inFlight     = 4                // parts of a transfer in flight, if so many regions are free
	transferTime = 30 * time.Second // limit of a transfer
)

// token offers the client's memory to the server, in the layout of cuObject and MinIO,
// "<descriptor>:<address>:<size>", where the descriptor is the data plane's own: here the
// session, which only the client that dialed knows, and the key of the memory.
type token struct {
	session    string
	rkey       uint32
	addr, size uint64
}

const sessionLen = 16 // bytes, twice as many hexadecimal digits

func (t token) String() string {
	return fmt.Sprintf("%s%08x:%016x:%016x", t.session, t.rkey, t.addr, t.size)
}

func parseToken(s string) (t token, err error) {
	fields := strings.Split(strings.TrimSuffix(s, ";"), ":") // some clients append a semicolon
	if len(fields) != 3 || len(fields[0]) != 2*sessionLen+8 || len(fields[1]) != 16 || len(fields[2]) != 16 {
		return t, fmt.Errorf("%s of %d bytes: want SESSION+KEY:ADDRESS:SIZE of 40, 16 and 16 digits", tokenHeader, len(s))
	}
	t.session = fields[0][:2*sessionLen]
	rkey, err1 := strconv.ParseUint(fields[0][2*sessionLen:], 16, 32)
	addr, err2 := strconv.ParseUint(fields[1], 16, 64)
	size, err3 := strconv.ParseUint(fields[2], 16, 64)
	if err := errors.Join(err1, err2, err3); err != nil {
		return t, fmt.Errorf("%s: a field is no hexadecimal number", tokenHeader)
	}
	if size == 0 || addr+size < addr {
		return t, fmt.Errorf("%s: no memory of %d bytes at %#x", tokenHeader, size, addr)
	}
	return token{t.session, uint32(rkey), addr, size}, nil
}

// staging is the size of the memory from which the server writes and to which it reads.
type staging struct{ regions, size int }

// dataPlane is the server's side of RDMA.
type dataPlane struct {
	staging
	dev      *uverbs.Context
	pd       *uverbs.PD
	mr       *uverbs.MR // the staging regions; peers have no access
	free     chan int   // numbers of the regions that no request uses
	l        *cm.Listener
	stop     context.CancelFunc
	running  sync.WaitGroup
	mu       sync.Mutex
	sessions map[string]*session // by ID
}

// session is a client's connection.
type session struct {
	ep   *cm.Endpoint
	turn chan struct{} // full while the client connects, a transfer runs, and after the end
}

// errDeclined is returned for tokens that this server cannot use: the client shall use HTTP.
var errDeclined = errors.New("no such RDMA session")

// listenRDMA accepts connections on the device that has addr.
func listenRDMA(ctx context.Context, t *cm.Transport, addr string, size staging) (d *dataPlane, err error) {
	d = &dataPlane{staging: size, free: make(chan int, size.regions), sessions: map[string]*session{}}
	defer func() {
		if err != nil {
			d.close()
			d = nil
		}
	}()
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return d, err
	}
	if d.dev, err = uverbs.Open(host); err != nil {
		return d, err
	}
	if d.pd, err = d.dev.AllocPD(); err != nil {
		return d, err
	}
	if d.mr, err = d.pd.AllocMR(size.regions*size.size, verbs.AccessLocalWrite, uverbs.MROptions{}); err != nil {
		return d, fmt.Errorf("%d staging regions of %d bytes: %w", size.regions, size.size, err)
	}
	for i := range size.regions {
		d.free <- i
	}
	if d.l, err = (&cm.ListenConfig{Transport: t}).Listen(ctx, addr); err != nil {
		return d, err
	}
	ctx, d.stop = context.WithCancel(ctx)
	d.running.Go(func() {
		for {
			req, err := d.l.Accept(ctx)
			if err != nil {
				return // closed
			}
			d.running.Go(func() {
				if err := d.serve(ctx, req); err != nil && ctx.Err() == nil {
					log.Printf("%v: %v", req.RemoteAddr(), err)
				}
			})
		}
	})
	return d, nil
}

// serve makes a session of a connection, and releases it when the connection has ended.
func (d *dataPlane) serve(ctx context.Context, req *cm.Request) error {
	id := make([]byte, sessionLen)
	rand.Read(id)
	s := &session{turn: make(chan struct{}, 1)}
	s.turn <- struct{}{}
	starting, cancel := context.WithTimeout(ctx, transferTime)
	defer cancel()
	ep, err := req.Accept(starting, cm.Options{
		PD:  d.pd,
		Cap: verbs.QPCap{MaxSendWR: inFlight + 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
		Setup: func(ep *cm.Endpoint) error {
			s.ep = ep
			d.mu.Lock()
			defer d.mu.Unlock()
			if len(d.sessions) >= maxSessions {
				return fmt.Errorf("there are %d sessions already", maxSessions)
			}
			d.sessions[hex.EncodeToString(id)] = s // the first request may overtake the end of Accept
			_, err := ep.QP.PostRecv(verbs.RecvWR{})
			return errors.Join(err, ep.Announce(id))
		},
	})
	defer func() {
		d.mu.Lock()
		delete(d.sessions, hex.EncodeToString(id))
		d.mu.Unlock()
	}()
	if err != nil {
		return err
	}
	defer ep.Close()
	// The client sends an empty message first: on iWARP the side that dialed must (RFC 5044,
	// 7.1.2).
	if _, err := ep.RecvCQ.Next(starting); err != nil {
		return fmt.Errorf("first message of the client: %w", ep.Reason(starting, err))
	}
	<-s.turn
	select {
	case <-ep.Done():
	case <-ctx.Done():
		ep.Disconnect() // ends a transfer
	}
	s.turn <- struct{}{} // when the last transfer has returned its regions
	return nil
}

// transfer moves data to the client's memory by OpRDMAWrite, or from it by OpRDMARead.
func (d *dataPlane) transfer(ctx context.Context, t token, op verbs.Opcode, data []byte) error {
	d.mu.Lock()
	s := d.sessions[t.session]
	d.mu.Unlock()
	if s == nil {
		return errDeclined
	}
	if len(data) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, transferTime)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-s.ep.Done():
		return errDeclined
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	// One region is enough to finish, so transfers that wait for their first cannot block each
	// other.
	var held []int
	select {
	case r := <-d.free:
		held = append(held, r)
	case <-ctx.Done():
		return fmt.Errorf("waiting for one of %d staging regions: %w", d.regions, context.Cause(ctx))
	}
	for more := true; more && len(held) < min(inFlight, (len(data)+d.size-1)/d.size); {
		select {
		case r := <-d.free:
			held = append(held, r)
		default:
			more = false
		}
	}
	err := d.move(ctx, s.ep, t, op, data, held)
	if err != nil {
		err = s.ep.Reason(ctx, err)
		// Requests may be in flight. They use the regions, and the client's memory, until the QP is
		// destroyed.
		if cerr := s.ep.Close(); cerr != nil {
			return fmt.Errorf("%w; %d staging regions are lost: %w", err, len(held), cerr)
		}
	}
	for _, r := range held {
		d.free <- r
	}
	return err
}

// move moves data in parts, through regions. After an error some requests may be in flight.
func (d *dataPlane) move(ctx context.Context, ep *cm.Endpoint, t token, op verbs.Opcode, data []byte, regions []int) error {
	const end = 1 << 32 // the ID of the message after the last WRITE; others have the region's number
	idle, parts := append([]int(nil), regions...), map[uint64][]byte{}
	for off := 0; off < len(data) || len(parts) > 0; {
		for ; off < len(data) && len(idle) > 0; idle = idle[1:] {
			id, part := uint64(idle[0]), data[off:min(off+d.size, len(data))]
			wr := verbs.SendWR{ID: id, Opcode: op, Flags: verbs.SendSignaled, RemoteAddr: t.addr + uint64(off), RKey: t.rkey,
				SGL: []verbs.SGE{d.mr.SGE(idle[0]*d.size, len(part))}}
			off += len(part)
			if op == verbs.OpRDMAWrite {
				copy(d.region(id), part)
			}
			// A WRITE says nothing to the client's program. The HTTP answer could overtake the last
			// bytes on their way from the client's device to its memory; the completion of a
			// receive cannot.
			if op == verbs.OpRDMAWrite && off == len(data) {
				wr.Opcode, wr.Imm = verbs.OpRDMAWriteImm, uint32(len(data))
			}
			_, err := ep.QP.PostSend(wr)
			if wr.Opcode == verbs.OpRDMAWriteImm && errors.Is(err, errors.ErrUnsupported) { // iWARP has no immediate data
				wr.Opcode = verbs.OpRDMAWrite
				parts[end] = nil
				_, err = ep.QP.PostSend(wr, verbs.SendWR{ID: end, Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
			}
			if err != nil {
				return err
			}
			parts[id] = part
		}
		wc, err := ep.SendCQ.Next(ctx)
		if err != nil {
			return err
		}
		if op == verbs.OpRDMARead {
			copy(parts[wc.ID], d.region(wc.ID))
		}
		if wc.ID != end {
			idle = append(idle, int(wc.ID))
		}
		delete(parts, wc.ID)
	}
	return nil
}

// region returns the memory of a staging region.
func (d *dataPlane) region(n uint64) []byte { return d.mr.Bytes()[int(n)*d.size:][:d.size] }

// close ends all transfers and releases everything.
func (d *dataPlane) close() {
	if d == nil {
		return
	}
	if d.l != nil {
		d.stop()
		d.l.Close()
		d.running.Wait()
	}
	var err error
	if d.mr != nil {
		err = d.mr.Close()
	}
	if d.pd != nil {
		err = errors.Join(err, d.pd.Close())
	}
	if d.dev != nil {
		err = errors.Join(err, d.dev.Close())
	}
	if err != nil {
		log.Print(err)
	}
}
