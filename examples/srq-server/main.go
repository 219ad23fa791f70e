// Command srq-server serves many connections with one shared receive queue: its memory depends on
// the requests in flight, not on the number of connections. It starts its clients itself.
//
//	srq-server [-d DEVICE] [-n CLIENTS]
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/netip"
	"sync"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
	"github.com/goverbs/verbs/uverbs"
)

const (
	requests = 10 // by each client
	room     = 64 // bytes of a request
)

func main() {
	log.SetFlags(0)
	device := flag.String("d", "", "RDMA device (default: the first)")
	clients := flag.Int("n", 16, "clients")
	flag.Parse()
	if err := run(*device, *clients); err != nil {
		log.Fatal(err)
	}
}

// server answers the requests of all connections.
type server struct {
	srq *uverbs.SRQ
	cq  *uverbs.CQ // for the sends and receives of all connections
	mr  *uverbs.MR // a slot for each receive

	mu    sync.Mutex
	conns map[uint32]*cm.Endpoint // by QP number
}

func run(device string, clients int) error {
	dev, err := uverbs.Open(device)
	if err != nil {
		return err
	}
	defer dev.Close()
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	defer pd.Close()
	events, err := dev.CreateCompChannel()
	if err != nil {
		return err
	}
	defer events.Close()
	s := server{conns: map[uint32]*cm.Endpoint{}}
	if s.cq, err = dev.CreateCQ(uverbs.CQOptions{Depth: 5 * clients, Channel: events}); err != nil {
		return err
	}
	defer s.cq.Close()
	if s.mr, err = pd.AllocMR(clients*room, verbs.AccessLocalWrite, uverbs.MROptions{}); err != nil {
		return err
	}
	defer s.mr.Close()
	// Clients wait for answers, so there are at most as many requests as clients.
	if s.srq, err = pd.CreateSRQ(uverbs.SRQOptions{MaxWR: clients, MaxSGE: 1}); err != nil {
		return err
	}
	defer s.srq.Close()
	for slot := range clients {
		if err := s.post(slot); err != nil {
			return err
		}
	}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	addrs, err := cm.DeviceAddrs(dev.Device())
	if err != nil {
		return err
	}
	l, err := cm.Listen(ctx, netip.AddrPortFrom(addrs[0], 0).String())
	if err != nil {
		return err
	}
	defer l.Close()
	defer s.close()
	done := make(chan error, clients+2)
	go func() { done <- s.accept(ctx, l, pd, clients) }()
	go func() { done <- s.serve(ctx, clients*requests) }()
	for i := range clients {
		go func() { done <- ask(ctx, l.Addr().String(), i) }()
	}
	for range cap(done) {
		if e := <-done; e != nil && err == nil {
			err = e
			cancel() // ends the others
		}
	}
	if err != nil {
		return err
	}
	fmt.Printf("%d requests of %d connections served from one queue of %d receives\n", clients*requests, clients, clients)
	return nil
}

func (s *server) accept(ctx context.Context, l *cm.Listener, pd *uverbs.PD, clients int) error {
	for range clients {
		req, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		conn, err := req.Accept(ctx, cm.Options{
			PD: pd, SRQ: s.srq, SendCQ: s.cq, RecvCQ: s.cq,
			KeepAlive: time.Minute, // notices clients whose machine is gone
			Setup: func(e *cm.Endpoint) error { // before the first request
				s.mu.Lock()
				defer s.mu.Unlock()
				s.conns[e.QP.Num()] = e
				return nil
			},
		})
		if err != nil { // the client's own error ends the others
			log.Printf("accept: %v", err)
			continue
		}
		go func() {
			<-conn.Done()
			// If conn were closed now, completions would be lost that serve has not seen, and with them
			// slots. This one comes behind them.
			for errors.Is(send(conn, ended, nil), verbs.ErrQueueFull) {
				time.Sleep(time.Millisecond)
			}
		}()
	}
	return nil
}

// IDs of all answers, and of the last send of a connection. Receives have the numbers of their slots.
const (
	answered = 1<<63 + iota
	ended
)

// serve answers n requests with their text in capitals. A failure ends one connection, not the
// others, none of which waits for it. A failed completion has only status, QP number and ID, so the
// ID tells answers from receives.
func (s *server) serve(ctx context.Context, n int) error {
	var wcs [16]verbs.WC
	for n > 0 {
		got, err := s.cq.PollWait(ctx, wcs[:])
		if err != nil {
			return err
		}
		for _, wc := range wcs[:got] {
			s.mu.Lock()
			conn := s.conns[wc.QPNum]
			if wc.ID == ended {
				delete(s.conns, wc.QPNum)
			}
			s.mu.Unlock()
			err := cm.SendError(&wc)
			switch {
			case wc.ID == ended:
				go conn.Close()
				continue
			case wc.ID < answered:
				if err == nil && conn != nil {
					err = s.answer(conn, wc)
					n--
				}
				if err := s.post(int(wc.ID)); err != nil { // also after a failure: the queue is shared
					return err
				}
			}
			// A client that has its last answer may disconnect before the send completes, which
			// then is flushed or fails.
			if err != nil && conn != nil {
				if wc.Status != verbs.WCFlushErr && !errors.Is(err, verbs.ErrDisconnected) {
					log.Printf("%v: %v", conn.RemoteAddr(), err)
				}
				conn.Disconnect()
			}
		}
	}
	return nil
}

// answer sends a copy of the slot, as inline data is, so that the slot can be posted again.
func (s *server) answer(conn *cm.Endpoint, wc verbs.WC) error {
	text := bytes.ToUpper(s.mr.Bytes()[int(wc.ID)*room:][:wc.ByteLen])
	return send(conn, answered, text)
}

func send(conn *cm.Endpoint, id uint64, text []byte) error {
	_, err := conn.QP.PostSend(verbs.SendWR{ID: id, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: text})
	return err
}

func (s *server) post(slot int) error {
	_, err := s.srq.PostRecv(verbs.RecvWR{ID: uint64(slot), SGL: []verbs.SGE{s.mr.SGE(slot*room, room)}})
	return err
}

func (s *server) close() {
	for _, c := range s.conns {
		c.Close()
	}
}
