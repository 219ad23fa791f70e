//go:build linux

package s3rdma

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
	"github.com/goverbs/verbs/verbstest"
)

// TestNoAccess has clients that use their queue pairs to reach the server's memory: they know the
// address and the key.
func TestNoAccess(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
		t.Run(op.String(), func(t *testing.T) {
			labtest.Require(t)
			r := newRig(t, ServerOptions{}, newStore())
			c := r.client(len(object))
			block := labtest.Must(r.srv.Block(r.within(), 4096))(t)
			defer block.Put()
			clear(block.Bytes())
			mr, off := block.MR(r.srv.pd)
			c.fill(object)
			_, err := c.qp.PostSend(verbs.SendWR{
				Opcode: op, Flags: verbs.SendSignaled, RemoteAddr: mr.Addr() + uint64(off), RKey: mr.RKey(), SGL: []verbs.SGE{c.mr.SGE(0, 100)},
			})
			labtest.Check(t, err)
			if _, err := c.cq.Next(r.within()); !errors.Is(err, verbs.WCRemInvReqErr) && !errors.Is(err, verbs.WCRemAccessErr) {
				t.Errorf("%v: %v", op, err)
			}
			if slices.Max(block.Bytes()) != 0 {
				t.Error("the client has written to the server's memory")
			}
			// The client has broken its own connection, and nobody else's.
			if got := r.do("GET", "/o", c.token(len(object))); got.StatusCode == 200 && got.reply == "200" {
				t.Error("its connection still works")
			}
			other := r.client(len(object))
			if got := r.do("GET", "/o", other.token(len(object))); got.reply != "200" || !other.has(object) {
				t.Errorf("another client: %d, reply %q", got.StatusCode, got.reply)
			}
		})
	}
}

// TestConnectionsAreNoGuess compares what names connections, IDs and PSNs.
func TestConnectionsAreNoGuess(t *testing.T) {
	r := newRig(t, ServerOptions{}, newStore())
	var names [][]byte
	for range 40 {
		c := r.client(100)
		names = append(names, labtest.Must(hex.DecodeString(c.id+hex6(c.peer.PSN)))(t))
	}
	labtest.BitsDiffer(t, names)
}

// TestForeignGID asks for transfers to a GID that is not the client's address.
func TestForeignGID(t *testing.T) {
	s := newStore()
	r := newRig(t, ServerOptions{AllowPeer: CheckPeer}, s)
	token := QPToken{QPNum: 17, GID: netip.MustParseAddr(clientAddr).As16(), Port: 1}.String()
	if resp := r.post(PathConnect, token, 1); resp.StatusCode != http.StatusForbidden {
		t.Errorf("connect: %s", resp.Status)
	}
	// As if the device had DC.
	r.srv.dc = newDCIs(r.srv)
	defer func() { r.srv.dc = nil }()
	for _, global := range []bool{true, false} { // by LID there is no address to compare
		dc := DCToken{Addr: 4096, Size: 100, QPNum: 17, LID: 1, Global: global, GID: netip.MustParseAddr(clientAddr).As16()}.String()
		if got := r.do("GET", "/o", dc); got.reply != "501" || got.body != string(object) {
			t.Errorf("GET: %d, reply %q", got.StatusCode, got.reply)
		}
		if got := r.do("PUT", "/o", dc); got.reply != "501" || s.stored != nil {
			t.Errorf("PUT: %d, reply %q", got.StatusCode, got.reply)
		}
	}
	if st := r.srv.Stats(); st.Declined[ReasonGID] != 5 || r.network.Stats().Sent != 0 {
		t.Errorf("%+v, %d packets", st, r.network.Stats().Sent)
	}
}

// TestOtherAccount uses and ends a connection that is another account's.
func TestOtherAccount(t *testing.T) {
	s := newStore()
	account := "owner"
	r := newRig(t, ServerOptions{Account: func(*http.Request) string { return account }}, s)
	c := r.client(100)
	account = "other"
	if got := r.do("PUT", "/o", c.token(100)); got.reply != "501" || s.stored != nil {
		t.Errorf("PUT: reply %q", got.reply)
	}
	req := labtest.Must(http.NewRequest("POST", r.http.URL+PathDisconnect, nil))(t)
	req.Header.Set(HeaderSession, c.id)
	resp := labtest.Must(http.DefaultClient.Do(req))(t)
	resp.Body.Close()
	account = "owner"
	if got := r.do("PUT", "/o", c.token(100)); got.reply != "200" {
		t.Errorf("the owner's PUT: reply %q", got.reply)
	}
	labtest.Must(http.DefaultClient.Do(req))(t).Body.Close()
	if got := r.do("PUT", "/o", c.token(100)); got.reply != "501" || r.srv.Stats().Connections != 0 {
		t.Errorf("after the end: reply %q, %+v", got.reply, r.srv.Stats())
	}
}

// blocking is a handler of PUT that reads a byte, and goes on when it may.
type blocking struct {
	reading chan struct{}
	goOn    chan struct{}
}

func (b *blocking) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	io.ReadFull(r.Body, make([]byte, 1))
	b.reading <- struct{}{}
	<-b.goOn
	io.Copy(io.Discard, r.Body)
}

// TestLimits holds what a limit allows, and asks for one more.
func TestLimits(t *testing.T) {
	const size = 30_000 // two parts
	for name, test := range map[string]struct {
		limits       Limits
		memory, part int
		accounts     []string // who holds transfers
		account      string   // who wants one more
		ok           bool
		limit        string // that the answer names
	}{
		"transfers":               {limits: Limits{Transfers: 2, AccountTransfers: 2}, accounts: []string{"a", "b"}, account: "c", limit: "limit Transfers of all accounts is 2"},
		"transfers of an account": {limits: Limits{Transfers: 8, AccountTransfers: 1}, accounts: []string{"a"}, account: "a", limit: "limit AccountTransfers of account &#34;a&#34; is 1"},
		"of another account":      {limits: Limits{Transfers: 8, AccountTransfers: 1}, accounts: []string{"a"}, account: "b", ok: true},
		"memory":                  {memory: 64 << 10, limits: Limits{AccountBytes: 1 << 20}, accounts: []string{"a", "b"}, account: "c"},
		"memory of an account":    {limits: Limits{AccountBytes: 2*size - 1}, accounts: []string{"a"}, account: "a", limit: "limit AccountBytes of account &#34;a&#34; is 59999"},
		"a transfer of its size":  {memory: 64 << 10, account: "a", ok: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := &blocking{make(chan struct{}), make(chan struct{})}
			s := newStore()
			s.Handle("PUT /hold", b)
			test.limits.Wait = 200 * time.Millisecond
			r := newRig(t, ServerOptions{Limits: test.limits, Memory: test.memory, Fabric: Fabric{Timeout: 16}, Account: func(r *http.Request) string { return r.Header.Get("Account") }}, s)
			// Connections belong to accounts.
			client := func(account string) string {
				c := r.client(size)
				r.srv.rc.find("", c.id).peer.Account = account
				return c.token(size)
			}
			var holding sync.WaitGroup
			for _, account := range test.accounts {
				token := client(account)
				holding.Go(func() {
					if got := r.do("PUT", "/hold", token, "Account", account); got.reply != "200" {
						t.Errorf("%s: %d, reply %q", account, got.StatusCode, got.reply)
					}
				})
				<-b.reading
			}
			token := client(test.account)
			want := "501"
			if test.ok {
				want = "200"
			}
			if got := r.do("PUT", "/o", token, "Account", test.account); got.reply != want || !strings.Contains(got.body, test.limit) {
				t.Errorf("PUT: %d, reply %q, want %s, %q", got.StatusCode, got.reply, want, got.body)
			}
			if got := r.do("GET", "/o", token, "Account", test.account, "Range", "bytes=0-29999"); got.reply != map[bool]string{true: "206", false: "501"}[test.ok] || (got.body == string(object[:size])) == test.ok {
				t.Errorf("GET: %d, reply %q, %d bytes by HTTP", got.StatusCode, got.reply, len(got.body))
			}
			if st := r.srv.Stats(); !test.ok && st.Declined[ReasonLimit] != 2 || st.Transfers != len(test.accounts) {
				t.Errorf("%+v", st)
			}
			close(b.goOn)
			holding.Wait()
			// What a transfer has is free again before the answer.
			for range 20 {
				if got := r.do("PUT", "/o", token, "Account", test.account); got.reply != "200" {
					t.Errorf("PUT afterwards: %d, reply %q", got.StatusCode, got.reply)
				}
			}
		})
	}
}

// TestConnectionLimits asks for more connections than there may be.
func TestConnectionLimits(t *testing.T) {
	account := "a"
	r := newRig(t, ServerOptions{Limits: Limits{Connections: 3, AccountConnections: 2}, Account: func(*http.Request) string { return account }}, newStore())
	token := QPToken{QPNum: 17, GID: netip.MustParseAddr(clientAddr).As16(), Port: 1}.String()
	for _, step := range []struct {
		account string
		status  int
	}{{"a", 200}, {"a", 200}, {"a", 503}, {"b", 200}, {"c", 503}} {
		account = step.account
		if resp := r.post(PathConnect, token, 1); resp.StatusCode != step.status {
			t.Errorf("%s: %s, want %d", step.account, resp.Status, step.status)
		}
	}
	for _, bad := range []struct {
		token string
		psn   uint32
	}{{"", 1}, {token[2:], 1}, {"00" + token[2:], 1}, {token, 0}} {
		if resp := r.post(PathConnect, bad.token, bad.psn); resp.StatusCode != 400 {
			t.Errorf("token %q, PSN %d: %s", bad.token, bad.psn, resp.Status)
		}
	}
	if st := r.srv.Stats(); st.Connections != 3 {
		t.Errorf("%+v", st)
	}
}

// TestIdleConnections ends connections that nobody uses, and whose client has gone.
func TestIdleConnections(t *testing.T) {
	r := newRig(t, ServerOptions{}, newStore())
	idle, dead, alive := r.client(100), r.client(100), r.client(100)
	back := func(c *client, by time.Duration) *conn {
		x := r.srv.rc.find("127.0.0.1", c.id)
		x.turn <- struct{}{}
		x.used = time.Now().Add(-by)
		<-x.turn
		return x
	}
	back(idle, 5*time.Minute).tick()
	if st := r.srv.Stats(); st.Connections != 2 {
		t.Errorf("an idle connection is left: %+v", st)
	}
	x, y := back(dead, keepAlive), back(alive, keepAlive)
	labtest.Check(t, dead.qp.Close())
	x.tick()
	y.tick()
	if got := r.do("GET", "/o", alive.token(100), "Range", "bytes=0-99"); got.reply != "206" || r.srv.Stats().Connections != 1 {
		t.Errorf("reply %q, %+v", got.reply, r.srv.Stats())
	}
	if got := r.do("GET", "/o", dead.token(100), "Range", "bytes=0-99"); got.reply != "501" || got.body != string(object[:100]) {
		t.Errorf("reply %q", got.reply)
	}
}

// TestLies has tokens with more memory than there is, and with a key that does not match.
func TestLies(t *testing.T) {
	s := newStore()
	eachRig(t, ServerOptions{}, s, func(t *testing.T, r *rig) {
		victim := r.client(len(object))
		for name, lie := range map[string]func(c *client) string{
			"length": func(c *client) string { return c.token(len(object) + 1<<20) },
			"key":    func(c *client) string { c.mr.Close(); return c.token(len(object)) },
		} {
			c := r.client(100_000)
			token := lie(c)
			s.put(nil, -1)
			if got := r.do("PUT", "/o", token); got.StatusCode != 500 || !strings.Contains(got.body, "RDMATransferFailed") || got.reply != "" || s.length != -1 {
				t.Errorf("%s: PUT: %d, reply %q, %.200q, stored %d", name, got.StatusCode, got.reply, got.body, s.length)
			}
			r.idle()
			if name == "length" {
				c = r.client(100_000)
				token = lie(c)
			}
			if !r.dc && name == "key" {
				continue // the connection has ended
			}
			// What was in memory goes by HTTP, and the rest has failed.
			got := r.do("GET", "/o", token, "Range", "bytes=0-9999")
			if name == "key" && (got.reply != "501" || got.body != string(object[:10_000])) {
				t.Errorf("%s: GET: %d, reply %q", name, got.StatusCode, got.reply)
			}
			if got := r.do("GET", "/o", token); name == "length" && (got.StatusCode != 500 || got.reply != "") {
				t.Errorf("%s: GET: %d, reply %q", name, got.StatusCode, got.reply)
			}
			r.idle()
		}
		if got := r.do("GET", "/o", victim.token(len(object))); got.reply != "200" || !victim.has(object) {
			t.Errorf("another client: %d, reply %q", got.StatusCode, got.reply)
		}
	})
}

// TestClientDies ends the queue pairs of clients in the middle, one after the other, while others work on.
func TestClientDies(t *testing.T) {
	b := &blocking{make(chan struct{}), make(chan struct{})}
	s := newStore()
	s.Handle("PUT /hold", b)
	s.HandleFunc("GET /hold", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(object)))
		w.Write(object[:200_000]) // the ring has 65,536
		b.reading <- struct{}{}
		<-b.goOn
		w.Write(object[200_000:])
	})
	eachRig(t, ServerOptions{Fabric: Fabric{DCIs: 2, Timeout: 14, RetryCount: 3}}, s, func(t *testing.T, r *rig) {
		stop := make(chan struct{})
		var working sync.WaitGroup
		working.Go(func() {
			c := r.client(len(object))
			for n := 0; ; n++ {
				select {
				case <-stop:
					t.Logf("%d transfers beside", n)
					return
				default:
				}
				c.fill(nil)
				if got := r.do("GET", "/o", c.token(len(object))); got.reply != "200" || !c.has(object) {
					t.Errorf("beside: %v, %d, reply %q", got.err, got.StatusCode, got.reply)
				}
			}
		})
		for i := range labtest.Rounds(20, 6) {
			method := []string{"PUT", "GET"}[i%2]
			c := r.client(len(object))
			answer := make(chan result, 1)
			go func() { answer <- r.do(method, "/hold", c.token(len(object))) }()
			<-b.reading
			labtest.Check(t, c.qp.Close())
			b.goOn <- struct{}{}
			if got := <-answer; got.StatusCode != 500 || got.reply != "" || !strings.Contains(got.body, "RDMATransferFailed") {
				t.Errorf("%s: %d, reply %q, %q", method, got.StatusCode, got.reply, got.body)
			}
		}
		close(stop)
		working.Wait()
		st := r.srv.Stats()
		t.Logf("%+v", st)
		if r.dc && st.DCIs > 2 {
			t.Errorf("%d DCIs", st.DCIs)
		}
	})
}

// TestClientStops has a client whose machine does not answer, or too late: a transfer ends after a time.
func TestClientStops(t *testing.T) {
	for name, test := range map[string]struct {
		opt  ServerOptions
		want string
	}{
		"retries":     {ServerOptions{}, "retries exceeded"},
		"Limits.Time": {ServerOptions{Limits: Limits{Time: 20 * time.Millisecond}, Fabric: Fabric{Timeout: 20}}, "Limits.Time"},
		"slow":        {ServerOptions{Limits: Limits{Time: 20 * time.Millisecond}, Fabric: Fabric{Timeout: 20}}, "Limits.Time"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore()
			r := newRig(t, test.opt, s)
			stop := func() { r.network.Partition(netip.MustParseAddr(clientAddr)) }
			if name == "slow" {
				stop = func() {
					r.network.SetFilter(func(p *verbstest.Packet) verbstest.Action { return verbstest.Action{Delay: 50 * time.Millisecond} })
				}
			}
			c := r.client(len(object))
			stop()
			if got := r.do("PUT", "/o", c.token(len(object))); got.StatusCode != 500 || !strings.Contains(got.body, test.want) || s.stored != nil {
				t.Errorf("PUT: %d, %q", got.StatusCode, got.body)
			}
			r.idle()
			r.network.Heal()
			c = r.client(len(object))
			stop()
			if got := r.do("GET", "/o", c.token(len(object)), "Range", "bytes=0-59999"); got.StatusCode != 206 || got.reply != "501" || got.body != string(object[:60_000]) {
				t.Errorf("GET: %d, reply %q", got.StatusCode, got.reply)
			}
			r.idle()
			if st := r.srv.Stats(); st.Failed != 2 || st.Declined[ReasonFailed] != 1 || st.Connections != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// TestCancelled cancels requests whose packets are on the way, and gives their memory to somebody else
// before these arrive.
func TestCancelled(t *testing.T) {
	const memory = 4 * 16 << 10
	for _, method := range []string{"PUT", "GET"} {
		t.Run(method, func(t *testing.T) {
			s := newStore()
			r := newRig(t, ServerOptions{Memory: memory, Limits: Limits{AccountBytes: memory}, Fabric: Fabric{Timeout: 20}}, s)
			c := r.client(len(object))
			c.fill(nil)
			late := make(chan struct{}, 1)
			r.network.SetFilter(func(p *verbstest.Packet) verbstest.Action {
				if p.Kind != verbstest.Write && p.Kind != verbstest.ReadResponse {
					return verbstest.Pass
				}
				select {
				case late <- struct{}{}:
				default:
				}
				return verbstest.Action{Delay: 50 * time.Millisecond}
			})
			ctx, cancel := context.WithCancel(r.within())
			req := labtest.Must(http.NewRequestWithContext(ctx, method, r.http.URL+"/o", nil))(t)
			req.Header.Set(HeaderToken, c.token(len(object)))
			failed := make(chan error, 1)
			go func() {
				resp, err := http.DefaultClient.Do(req)
				if err == nil {
					resp.Body.Close()
				}
				failed <- err
			}()
			<-late
			cancel()
			if err := <-failed; !errors.Is(err, context.Canceled) {
				t.Errorf("request: %v", err)
			}
			block := labtest.Must(r.srv.Block(r.within(), memory))(t) // waits for all of it
			defer block.Put()
			for i := range block.Bytes() {
				block.Bytes()[i] = 0xa5
			}
			sent := r.network.Stats().Sent
			labtest.Until(t, "late packets have arrived", func() bool { st := r.network.Stats(); return st.Delivered+st.Dropped >= sent })
			other := r.client(100)
			if got := r.do("PUT", "/o", other.token(0)); got.reply != "200" {
				t.Errorf("afterwards: %d, reply %q", got.StatusCode, got.reply)
			}
			if bytes.Count(block.Bytes(), []byte{0xa5}) != memory {
				t.Error("the cancelled transfer has written to memory that is another's now")
			}
			if bytes.Contains(c.mr.Bytes(), []byte{0xa5, 0xa5, 0xa5, 0xa5}) {
				t.Error("the cancelled transfer has sent what is another's now")
			}
		})
	}
}

// TestAnswerWaits delays the last acknowledgements: there is no answer before.
func TestAnswerWaits(t *testing.T) {
	r := newRig(t, ServerOptions{}, newStore())
	c := r.client(len(object))
	var mu sync.Mutex
	var acked []uint32
	r.network.SetFilter(func(p *verbstest.Packet) verbstest.Action {
		if p.Kind != verbstest.Ack {
			return verbstest.Pass
		}
		mu.Lock()
		defer mu.Unlock()
		acked = append(acked, p.PSN)
		return verbstest.Action{Delay: 2 * time.Millisecond} // less than the server's timeout
	})
	start := time.Now()
	if got := r.do("GET", "/o", c.token(100), "Range", "bytes=0-99"); got.reply != "206" || !c.has(object[:100]) {
		t.Errorf("%d, reply %q", got.StatusCode, got.reply)
	}
	mu.Lock()
	defer mu.Unlock()
	if took := time.Since(start); len(acked) == 0 || took < 2*time.Millisecond {
		t.Errorf("answered after %v, %d acknowledgements were delayed", took, len(acked))
	}
}

// TestTwice uses one token for requests of several objects at a time. An RC connection takes turns, so the memory has
// the object that was moved last; on DC it may have bytes of all.
func TestTwice(t *testing.T) {
	s := newStore()
	var objects [4][]byte // as many as fit the limits
	for i := range objects {
		objects[i] = bytes.Repeat([]byte{byte(i + 1)}, len(object))
	}
	var last atomic.Int64
	s.HandleFunc("GET /of/{i}", func(w http.ResponseWriter, r *http.Request) {
		i, _ := strconv.Atoi(r.PathValue("i"))
		w.Write(objects[i])
		last.Store(int64(i)) // it has its turn until it returns
	})
	eachRig(t, ServerOptions{}, s, func(t *testing.T, r *rig) {
		c := r.client(len(object))
		var all sync.WaitGroup
		for i := range objects {
			all.Go(func() {
				if got := r.do("GET", fmt.Sprint("/of/", i), c.token(len(object))); got.StatusCode != 200 || got.reply != "200" {
					t.Errorf("%v, %d, reply %q", got.err, got.StatusCode, got.reply)
				}
			})
		}
		all.Wait()
		if !r.dc && !c.has(objects[last.Load()]) || slices.Min(c.mr.Bytes()[:len(object)]) == 0 {
			t.Error("other bytes")
		}
	})
}

// TestForgottenBody has handlers that leave the body to a goroutine, and return.
func TestForgottenBody(t *testing.T) {
	late := make(chan error)
	in, out := io.Pipe()
	s := newStore()
	s.HandleFunc("PUT /read", func(w http.ResponseWriter, r *http.Request) {
		io.ReadFull(r.Body, make([]byte, 10))
		go func() {
			<-late
			_, err := io.ReadFull(r.Body, make([]byte, 10))
			late <- err
		}()
	})
	s.HandleFunc("PUT /pipe", func(w http.ResponseWriter, r *http.Request) {
		go func() {
			_, err := io.Copy(out, r.Body)
			late <- err
		}()
		in.Read(make([]byte, 1))
	})
	r := newRig(t, ServerOptions{}, s)
	c := r.client(len(object))
	r.do("PUT", "/read", c.token(len(object)))
	r.idle()
	late <- nil
	if err := <-late; !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("read after the answer: %v", err)
	}
	c = r.client(len(object))
	if got := r.do("PUT", "/pipe", c.token(len(object))); got.reply != "" { // while the goroutine waits for the pipe
		t.Errorf("reply %q", got.reply)
	}
	if st := r.srv.Stats(); st.Transfers != 0 || r.srv.arena.Stats().InUse == 0 {
		t.Errorf("memory that a goroutine uses was returned: %+v", st)
	}
	in.Close()
	if err := <-late; !errors.Is(err, verbs.ErrClosed) && !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("copy after the answer: %v", err)
	}
}

// TestDCIReset fails transfers on the only DCI, in all ways that there are.
func TestDCIReset(t *testing.T) {
	labtest.RequireAdapter(t)
	dev := labtest.OpenDevice(t, labtest.MLX5)
	r := &rig{t: t, dc: true, devices: [2]*uverbs.Context{dev, dev}}
	s := newStore()
	r.start(ServerOptions{Fabric: Fabric{DCIs: 1}}, s)
	good := r.client(len(object))
	good.fill(object)
	for name, bad := range map[string]func(*DCToken){
		"key of the memory": func(t *DCToken) { t.RKey++ },
		"address":           func(t *DCToken) { t.Addr -= 1 << 30 },
		"target":            func(t *DCToken) { t.QPNum ^= 0x800000 },
	} {
		token := labtest.Must(ParseDCToken(good.token(len(object))))(t)
		bad(&token)
		if got := r.do("PUT", "/o", token.String()); got.StatusCode != 500 || got.reply != "" {
			t.Errorf("%s: %d, reply %q", name, got.StatusCode, got.reply)
		}
		s.put(nil, -1)
		if got := r.do("PUT", "/o", good.token(len(object))); got.reply != "200" || !bytes.Equal(s.stored, object) {
			t.Errorf("behind a wrong %s: %d, reply %q, %s", name, got.StatusCode, got.reply, got.body)
		}
	}
	r.dcKey = 1
	other := r.client(len(object))
	if got := r.do("PUT", "/o", other.token(len(object))); got.StatusCode != 500 || !strings.Contains(got.body, "another DC key") {
		t.Errorf("another DC key: %d, %s", got.StatusCode, got.body)
	}
	if got := r.do("PUT", "/o", good.token(len(object))); got.reply != "200" {
		t.Errorf("behind another DC key: %d, reply %q, %s", got.StatusCode, got.reply, got.body)
	}
	if st := r.srv.Stats(); st.DCIs != 1 || st.Failed != 4 {
		t.Errorf("%+v", st)
	}
}

// TestIWARPIsRefused asks for a server and a client on siw.
func TestIWARPIsRefused(t *testing.T) {
	labtest.RequireKernel(t)
	dev := labtest.OpenDevice(t, labtest.SIW)
	if _, err := NewServer(ServerOptions{Device: dev}); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "use RoCE") {
		t.Errorf("server: %v", err)
	}
	if _, err := NewClient(ClientOptions{Device: labtest.SIW}); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "RoCE") {
		t.Errorf("client: %v", err)
	}
}
