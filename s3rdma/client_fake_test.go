//go:build linux

package s3rdma

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/uverbs"
	"github.com/goverbs/verbs/verbstest"
)

// fakeStore is an S3 server that moves objects by RDMA, with as little as a client needs, and that a
// test makes fail, lie and stop.
type fakeStore struct {
	t       *testing.T
	web     *httptest.Server
	dev     *uverbs.Context
	pd      *uverbs.PD
	gid     verbs.GIDEntry
	hook    func(w http.ResponseWriter, r *http.Request) bool // reports that it has answered
	network *verbstest.Network                                // nil in the lab

	impatient bool

	moving sync.Mutex // held while the memory is in use
	mr     *uverbs.MR

	mu      sync.Mutex
	objects map[string][]byte
	ends    map[string]*fakeEnd
	tokens  []string // of all requests for objects, "" without
	gone    []string // connections that clients have ended
}

// fakeEnd is a queue pair of the server's.
type fakeEnd struct {
	ch *uverbs.CompChannel
	cq *uverbs.CQ
	qp *uverbs.QP
}

func (s *fakeStore) newEnd(opt uverbs.QPOptions) *fakeEnd {
	t, e := s.t, &fakeEnd{}
	e.ch = labtest.Must(s.dev.CreateCompChannel())(t)
	e.cq = labtest.Must(s.dev.CreateCQ(uverbs.CQOptions{Depth: 4, Channel: e.ch}))(t)
	opt.SendCQ, opt.RecvCQ = e.cq, e.cq
	e.qp = labtest.Must(s.pd.CreateQP(opt))(t)
	return e
}

func (e *fakeEnd) close(t *testing.T) {
	labtest.Check(t, e.qp.Close(), e.cq.Close(), e.ch.Close())
}

// options returns the attributes of a queue pair. An impatient server notices soon that a client's memory
// is closed.
func (s *fakeStore) options() uverbs.ConnectOptions {
	if s.impatient {
		return uverbs.ConnectOptions{MaxRDAtomic: 1, Timeout: 16, RetryCount: 2}
	}
	return uverbs.ConnectOptions{MaxRDAtomic: 1}
}

// move moves data to what a token names, or to data from there.
func (s *fakeStore) move(token string, op verbs.Opcode, data []byte) error {
	t := s.t
	wr := verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled}
	var e *fakeEnd
	if rc, err := ParseRCToken(token); err == nil {
		s.mu.Lock()
		e = s.ends[rc.Conn]
		s.mu.Unlock()
		if e == nil {
			return errors.New("no such connection")
		}
		wr.RemoteAddr, wr.RKey = rc.Addr, rc.RKey
	} else {
		dc := labtest.Must(ParseDCToken(token))(t)
		e = s.newEnd(uverbs.QPOptions{Type: verbs.DCI, DCKey: DefaultDCKey})
		defer e.close(t)
		labtest.Check(t, e.qp.StartDC(s.gid, s.options()))
		local := labtest.Must(e.qp.AddrOn(s.gid))(t)
		ah := labtest.Must(s.pd.CreateAH(verbs.QPAddr{QPNum: dc.QPNum, GID: dc.GID, LID: dc.LID}.PathFrom(local)))(t)
		defer ah.Close()
		wr.To, wr.RemoteAddr, wr.RKey = ah.To(dc.QPNum, 0), dc.Addr, dc.RKey
	}
	s.moving.Lock()
	defer s.moving.Unlock()
	if op == verbs.OpRDMAWrite {
		copy(s.mr.Bytes(), data)
	}
	wr.SGL = []verbs.SGE{s.mr.SGE(0, len(data))}
	if _, err := e.qp.PostSend(wr); err != nil {
		return err
	}
	_, err := e.cq.Next(labtest.Within(t, time.Minute))
	if op == verbs.OpRDMARead {
		copy(data, s.mr.Bytes())
	}
	return err
}

func (s *fakeStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case PathConnect:
		s.connect(w, r)
		return
	case PathDisconnect:
		if r.ProtoMajor < 2 && !r.Close {
			s.t.Error("the deadline of a request to disconnect may end the next one on its connection")
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		id := r.Header.Get(HeaderSession)
		s.gone = append(s.gone, id)
		if e := s.ends[id]; e != nil {
			delete(s.ends, id)
			e.close(s.t)
		}
		w.WriteHeader(http.StatusNoContent)
		return
	}
	token := r.Header.Get(HeaderToken)
	s.mu.Lock()
	s.tokens = append(s.tokens, token)
	s.mu.Unlock()
	if s.hook != nil && s.hook(w, r) {
		return
	}
	if token = r.Header.Get(HeaderToken); r.Method == http.MethodPut {
		s.put(w, r, token)
	} else {
		s.get(w, r, token)
	}
}

func (s *fakeStore) connect(w http.ResponseWriter, r *http.Request) {
	peer, err1 := ParseQPToken(r.Header.Get(HeaderToken))
	psn, err2 := parseHex(r.Header.Get(HeaderPSN), 24)
	if err := errors.Join(err1, err2); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	e := s.newEnd(uverbs.QPOptions{})
	local := labtest.Must(e.qp.AddrOn(s.gid))(s.t)
	remote := verbs.QPAddr{QPNum: peer.QPNum, PSN: uint32(psn), GID: peer.GID, LID: peer.LID}
	labtest.Check(s.t, e.qp.Connect(local, remote, s.options()))
	s.mu.Lock()
	id := fmt.Sprintf("%032x", e.qp.Num())
	s.ends[id] = e
	s.mu.Unlock()
	w.Header().Set(HeaderReply, "200:"+QPToken{QPNum: local.QPNum, GID: local.GID, Port: 1, LID: local.LID}.String())
	w.Header().Set(HeaderPSN, fmt.Sprintf("%06x", local.PSN))
	w.Header().Set(HeaderSession, id)
}

// forget ends all connections, as a server that has restarted.
func (s *fakeStore) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, e := range s.ends {
		e.close(s.t)
		delete(s.ends, id)
	}
}

// seen returns the tokens since the last call.
func (s *fakeStore) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	tokens := s.tokens
	s.tokens = nil
	return tokens
}

func tokenSize(token string) int {
	if rc, err := ParseRCToken(token); err == nil {
		return int(rc.Size)
	}
	dc, _ := ParseDCToken(token)
	return int(dc.Size)
}

func (s *fakeStore) put(w http.ResponseWriter, r *http.Request, token string) {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Error(err)
	}
	if token != "" {
		data = make([]byte, tokenSize(token))
		if err := s.move(token, verbs.OpRDMARead, data); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set(HeaderReply, "200")
	}
	if given, sum := givenChecksum(r.Header); checksums[given] != nil && sum != "" && checksum(given, data) != sum {
		http.Error(w, "BadDigest", http.StatusBadRequest)
		return
	} else if sum == "" && token != "" {
		s.t.Errorf("PUT %s has a token and no checksum", r.URL.Path)
	}
	s.mu.Lock()
	s.objects[r.URL.Path] = data
	s.mu.Unlock()
}

func (s *fakeStore) get(w http.ResponseWriter, r *http.Request, token string) {
	s.mu.Lock()
	data, ok := s.objects[r.URL.Path]
	s.mu.Unlock()
	if !ok {
		http.Error(w, "NoSuchKey", http.StatusNotFound)
		return
	}
	if token == "" {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
		return
	}
	reply := "200"
	if text, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok {
		first, last, _ := strings.Cut(text, "-")
		from, to := labtest.Must(strconv.Atoi(first))(s.t), labtest.Must(strconv.Atoi(last))(s.t)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %s/%d", text, len(data)))
		reply, data = "206", data[from:to+1]
	}
	data = data[:min(len(data), tokenSize(token))] // as elbencho does
	if err := s.move(token, verbs.OpRDMAWrite, data); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set(HeaderReply, reply)
	w.Header().Set(HeaderBytes, strconv.Itoa(len(data)))
}

// eachFake runs a test with a client and a server, by RC on a network in memory or on the lab's device,
// and by DC on an emulated ConnectX. When it ends, all objects of both sides must be gone.
func eachFake(t *testing.T, opt ClientOptions, test func(t *testing.T, s *fakeStore, c *Client)) {
	run := func(t *testing.T, rc bool, clientDevice, serverDevice string, network *verbstest.Network) {
		s := &fakeStore{t: t, objects: map[string][]byte{}, ends: map[string]*fakeEnd{}, network: network}
		s.dev = labtest.Must(uverbs.Open(serverDevice))(t)
		s.gid = labtest.Must(s.dev.FindGID(1, netip.Addr{}))(t)
		s.pd = labtest.Must(s.dev.AllocPD())(t)
		s.mr = labtest.Must(s.pd.AllocMR(4<<20, verbs.AccessLocalWrite, uverbs.MROptions{}))(t)
		s.web = httptest.NewServer(s)
		opt := opt
		opt.Device, opt.RC = clientDevice, rc
		opt.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
		c := labtest.Must(NewClient(opt))(t)
		defer func() {
			labtest.Check(t, c.Close())
			s.web.Close()
			s.forget()
			labtest.Check(t, s.mr.Close(), s.pd.Close(), s.dev.Close())
		}()
		test(t, s, c)
	}
	t.Run("RC", func(t *testing.T) {
		if labtest.Lab {
			labtest.RequireKernel(t)
			before := labtest.SettledInventory(t)
			run(t, true, labtest.RoCE, labtest.RoCE, nil)
			labtest.CheckLeaks(t, before)
			return
		}
		network := verbstest.NewNetwork(verbstest.Options{})
		var devices [2]*soft.Device
		for i, addr := range []string{"10.0.0.1", "10.0.0.2"} {
			devices[i] = labtest.Made(soft.New(soft.Options{Network: network, Host: addr, Addrs: []netip.Addr{netip.MustParseAddr(addr)}}))(t)
		}
		run(t, false, devices[0].Name(), devices[1].Name(), network)
		for _, d := range devices {
			for name, n := range d.Resources() {
				if n != 0 {
					t.Errorf("%d %s are left on %v", n, name, d.Addrs())
				}
			}
		}
	})
	t.Run("DC", func(t *testing.T) {
		labtest.RequireAdapter(t)
		before := labtest.SettledInventory(t)
		run(t, false, labtest.MLX5, labtest.MLX5, nil)
		labtest.CheckLeaks(t, before)
	})
}
