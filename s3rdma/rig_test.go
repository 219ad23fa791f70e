//go:build linux

package s3rdma

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/uverbs"
	"github.com/goverbs/verbs/verbstest"
)

func TestMain(m *testing.M) { labtest.Main(m) }

const (
	serverAddr = "10.0.0.2"
	clientAddr = "10.0.0.1"
)

// rig is a server, and a device for clients, on a network in memory or on a device of the lab.
type rig struct {
	t        *testing.T
	dc       bool
	dcKey    uint64 // of clients; 0 is the default
	srv      *Server
	http     *httptest.Server
	devices  [2]*uverbs.Context // the server's and the client's
	network  *verbstest.Network // nil in the lab
	software [2]*soft.Device
}

// newRig makes a server with small parts, in a network in memory.
func newRig(t *testing.T, opt ServerOptions, next http.Handler) *rig {
	t.Helper()
	labtest.Require(t)
	r := &rig{t: t, network: verbstest.NewNetwork(verbstest.Options{})}
	for i, addr := range []string{serverAddr, clientAddr} {
		r.software[i] = labtest.Made(soft.New(soft.Options{Network: r.network, Host: addr, Addrs: []netip.Addr{netip.MustParseAddr(addr)}}))(t)
		r.devices[i] = labtest.Made(uverbs.Open(r.software[i].Name()))(t)
	}
	r.start(opt, next)
	return r
}

// eachRig runs a test by RC in memory and on the lab's device, and by DC on an emulated ConnectX.
func eachRig(t *testing.T, opt ServerOptions, next http.Handler, test func(t *testing.T, r *rig)) {
	device := func(t *testing.T, name string, dc bool) {
		dev := labtest.OpenDevice(t, name)
		r := &rig{t: t, dc: dc, devices: [2]*uverbs.Context{dev, dev}}
		r.start(opt, next)
		test(t, r)
	}
	t.Run("RC", func(t *testing.T) {
		if labtest.Lab {
			labtest.RequireKernel(t)
			device(t, labtest.RoCE, false)
			return
		}
		test(t, newRig(t, opt, next))
	})
	t.Run("DC", func(t *testing.T) {
		labtest.RequireAdapter(t)
		device(t, labtest.MLX5, true)
	})
}

func (r *rig) start(opt ServerOptions, next http.Handler) {
	t := r.t
	t.Helper()
	opt.Device = r.devices[0]
	if opt.Memory == 0 {
		opt.Memory = 1 << 20
	}
	if opt.Part == 0 {
		opt.Part = 16 << 10
	}
	if opt.AllowPeer == nil {
		opt.AllowPeer = func(*http.Request, verbs.GID) error { return nil } // HTTP is on loopback
	}
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if opt.Fabric.Timeout == 0 { // a peer that has gone costs a test a second; a slow machine answers within that
		opt.Fabric.Timeout, opt.Fabric.RetryCount = 16, 3
	}
	r.srv = labtest.Must(NewServer(opt))(t)
	r.http = httptest.NewServer(r.srv.Handler(next))
	t.Cleanup(func() {
		r.http.Close()
		r.idle()
		if err := r.srv.Close(); err != nil && !errors.Is(err, verbs.ErrClosed) {
			t.Error(err)
		}
		if r.software[0] != nil {
			if left := r.software[0].Resources(); left["qp"]+left["mr"]+left["pd"]+left["cq"]+left["ah"] != 0 {
				t.Errorf("the server has left %v", left)
			}
		}
	})
}

// idle checks that no transfer has anything of the server.
func (r *rig) idle() {
	r.t.Helper()
	st, arena := r.srv.Stats(), r.srv.arena.Stats()
	if st.Transfers != 0 || st.Memory != 0 || st.DCIsInUse != 0 || arena.InUse != 0 {
		r.t.Errorf("the server has %+v, memory %+v", st, arena)
	}
}

// client is a client's memory, and its connection or target.
type client struct {
	r    *rig
	pd   *uverbs.PD
	ch   *uverbs.CompChannel
	cq   *uverbs.CQ
	srq  *uverbs.SRQ
	mr   *uverbs.MR
	qp   *uverbs.QP
	gid  verbs.GIDEntry
	id   string       // of the connection
	peer verbs.QPAddr // the server's end
}

func (r *rig) client(size int) *client {
	t := r.t
	t.Helper()
	dev := r.devices[1]
	c := &client{r: r, pd: labtest.Made(dev.AllocPD())(t)}
	c.ch = labtest.Made(dev.CreateCompChannel())(t)
	c.cq = labtest.Made(dev.CreateCQ(uverbs.CQOptions{Depth: 32, Channel: c.ch}))(t)
	c.mr = labtest.Made(c.pd.AllocMR(size, verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite, uverbs.MROptions{}))(t)
	c.gid = labtest.Must(dev.FindGID(1, netip.Addr{}))(t)
	opt := uverbs.ConnectOptions{Access: verbs.AccessRemoteRead | verbs.AccessRemoteWrite, MaxDestRDAtomic: 1, Timeout: 16, RetryCount: 3}
	if r.dc {
		c.srq = labtest.Made(c.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 1, MaxSGE: 1}))(t)
		c.qp = labtest.Must(c.pd.CreateQP(uverbs.QPOptions{Type: verbs.DCT, RecvCQ: c.cq, SRQ: c.srq, DCKey: cmp.Or(r.dcKey, DefaultDCKey)}))(t)
		t.Cleanup(func() { c.qp.Close() })
		labtest.Check(t, c.qp.StartDC(c.gid, opt))
		return c
	}
	c.qp = labtest.Must(c.pd.CreateQP(uverbs.QPOptions{SendCQ: c.cq, RecvCQ: c.cq}))(t)
	t.Cleanup(func() { c.qp.Close() })
	local := labtest.Must(c.qp.AddrOn(c.gid))(t)
	resp := r.post(PathConnect, QPToken{QPNum: local.QPNum, GID: local.GID, Port: uint8(local.Port), LID: local.LID}.String(), local.PSN)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("connect: %s", resp.Status)
	}
	c.id = resp.Header.Get(HeaderSession)
	reply, ok := strings.CutPrefix(resp.Header.Get(HeaderReply), "200:")
	token := labtest.Must(ParseQPToken(reply))(t)
	psn := labtest.Must(parseHex(resp.Header.Get(HeaderPSN), 24))(t)
	if !ok || len(c.id) != 32 || psn == 0 {
		t.Fatalf("connect: %v", resp.Header)
	}
	c.peer = verbs.QPAddr{QPNum: token.QPNum, PSN: uint32(psn), GID: token.GID, LID: token.LID}
	labtest.Check(t, c.qp.Connect(local, c.peer, opt))
	return c
}

func (r *rig) post(path, token string, psn uint32) *http.Response {
	req := labtest.Must(http.NewRequestWithContext(r.within(), "POST", r.http.URL+path, nil))(r.t)
	req.Header.Set(HeaderToken, token)
	req.Header.Set(HeaderPSN, hex6(psn))
	resp := labtest.Must(http.DefaultClient.Do(req))(r.t)
	resp.Body.Close()
	return resp
}

func (r *rig) within() context.Context { return labtest.Within(r.t, time.Minute) }

// token is one for the first size bytes of the client's memory.
func (c *client) token(size int) string {
	if c.r.dc {
		port := labtest.Must(c.r.devices[1].QueryPort(1))(c.r.t)
		return DCToken{Addr: c.mr.Addr(), Size: uint32(size), RKey: c.mr.RKey(), LID: port.LID, QPNum: c.qp.Num(), Global: true, GID: c.gid.GID}.String()
	}
	return RCToken{Conn: c.id, Addr: c.mr.Addr(), Size: uint64(size), RKey: c.mr.RKey()}.String()
}

// result is an answer.
type result struct {
	*http.Response
	reply string
	moved string
	body  string // by HTTP
	err   error
}

// do sends a request once, as net/http repeats no request with a body that it cannot make again.
func (r *rig) do(method, path, token string, header ...string) result {
	r.t.Helper()
	var none io.Reader
	if method == http.MethodGet {
		none = io.NopCloser(strings.NewReader(""))
	}
	req := labtest.Must(http.NewRequestWithContext(r.within(), method, r.http.URL+path, none))(r.t)
	if token != "" {
		req.Header.Set(HeaderToken, token)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return result{Response: &http.Response{}, err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return result{resp, resp.Header.Get(HeaderReply), resp.Header.Get(HeaderBytes), string(body), err}
}

// fill writes bytes to the client's memory.
func (c *client) fill(p []byte) {
	clear(c.mr.Bytes())
	copy(c.mr.Bytes(), p)
}

func (c *client) has(want []byte) bool { return bytes.Equal(c.mr.Bytes()[:len(want)], want) }
