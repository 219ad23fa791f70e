package hipobj

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/s3rdma"
	"github.com/goverbs/verbs/uverbs"
)

// Client gets and puts objects, each with a queue pair of its own. Its methods may be called by
// several goroutines.
type Client struct {
	URL  string                    // of the control endpoint, without a path: http://10.0.0.2:9000
	HTTP *http.Client              // nil is http.DefaultClient; redirects are errors
	Sign func(*http.Request) error // signs a request with all its headers, by several goroutines; nil signs nothing
	// PD is the domain of the queue pairs. A server reaches all of its regions with remote rights while it
	// moves an object: use a PD for each server that is trusted differently.
	PD  *uverbs.PD
	GID verbs.GIDEntry // the client's; zero is the best one of port 1
	// Connect has the attributes of connections. Access is ignored.
	Connect uverbs.ConnectOptions
	// WriteDelay is waited between READY and the WRITE of a PUT, for servers that connect their
	// queue pair in READY: they drop what comes before, and it comes again after Connect.Timeout.
	// Servers of this package need none; hipObject's client waits 100 ms.
	WriteDelay time.Duration
}

// Memory is a part of a region of the client's PD. For Get the region needs AccessRemoteWrite.
type Memory struct {
	MR     *uverbs.MR
	Offset int
	Size   int // 0 is all from Offset on
}

// Result describes an object that has been moved.
type Result struct {
	Object
	Checksum string // of a PUT: "CRC64NVME " and base64; it is that of the memory. "" if the server has sent none
}

const (
	cancelTime    = 2 * time.Second // how long a failed transfer waits for the answer to CANCEL, and then to READY
	immediateTime = 5 * time.Second // how long a GET waits for the immediate data after the answer to READY
)

// Get fills memory with an object from an offset, which must have as many bytes. The target is
// /bucket/key, percent-encoded.
//
// Errors of [Client.Get] and [Client.Put] match errors.ErrUnsupported if HTTP may succeed: the
// server does not have the protocol, or not for this size. Answers of the server are an *[Error].
// Each call makes one attempt. The queue pair is closed when it returns: the memory is the caller's
// again.
func (c *Client) Get(ctx context.Context, target string, offset int64, m Memory) (Result, error) {
	return c.transfer(ctx, Request{Op: Get, Target: target, Offset: offset}, m)
}

// Put stores memory as an object. If it fails, the object may have been stored nevertheless, whole.
func (c *Client) Put(ctx context.Context, target string, m Memory) (Result, error) {
	return c.transfer(ctx, Request{Op: Put, Target: target}, m)
}

func (c *Client) transfer(ctx context.Context, r Request, m Memory) (res Result, err error) {
	x, err := c.begin(r, m)
	defer func() { // also if Sign panics
		if x != nil {
			// When this returns the server cannot write to the memory any more, nor does the device
			// read it.
			if e := x.qp.Close(); e != nil {
				err = errors.Join(err, fmt.Errorf("%w: %w", s3rdma.ErrMemoryLost, e))
			}
		}
		if err != nil {
			err = fmt.Errorf("%s %s %.100s by RDMA: %w", Protocol, r.Op, r.Target, err)
		}
	}()
	if err != nil {
		return res, err
	}
	return x.run(ctx)
}

// exchange is a transfer of a Client.
type exchange struct {
	client *Client
	Request
	mem     Memory
	qp      *uverbs.QP
	session string
	http2   bool   // or later: requests to the server share a connection
	addr    uint64 // of the server's memory for a PUT
	rkey    uint32
}

// begin makes an exchange and its queue pair.
func (c *Client) begin(r Request, m Memory) (x *exchange, err error) {
	m.Size = cmp.Or(m.Size, m.MR.Len()-m.Offset)
	if m.Offset < 0 || m.Size < 0 || m.Offset > m.MR.Len()-m.Size {
		return nil, fmt.Errorf("memory of %d bytes from %d on in a region of %d: %w", m.Size, m.Offset, m.MR.Len(), verbs.ErrRange)
	}
	dev, gid := c.PD.Context(), c.GID
	if dev.Device().IWARP() {
		return nil, fmt.Errorf("%s is an iWARP device, which has no immediate data: %w", dev.Device().Name, errors.ErrUnsupported)
	}
	if gid.Port == 0 {
		if gid, err = dev.FindGID(1, netip.Addr{}); err != nil {
			return nil, err
		}
	}
	port, err := dev.QueryPort(gid.Port)
	if err != nil {
		return nil, err
	}
	most := maxSize(port)
	if m.Size == 0 || int64(m.Size) > most {
		return nil, fmt.Errorf("%d bytes, want 1 to %d: %w", m.Size, most, errors.ErrUnsupported)
	}
	x = &exchange{client: c, Request: r, mem: m}
	x.Size, x.Cookie = int64(m.Size), 1+rand.Uint32N(1<<32-1)
	x.qp, err = c.PD.CreateQP(uverbs.QPOptions{Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
	if err != nil {
		return nil, err
	}
	if x.Peer, err = x.qp.AddrOn(gid); err == nil {
		err = x.check(most)
	}
	if err != nil {
		x.qp.Close()
		return nil, err
	}
	return x, nil
}

// answer is what a request has ended with.
type answer struct {
	h   http.Header
	err error
}

func (x *exchange) run(ctx context.Context) (Result, error) {
	h, err := x.send(ctx, "prepare")
	if err != nil {
		return Result{}, err
	}
	x.session = get(h, "session")
	if err = x.connect(h); err == nil {
		h, err = x.move(ctx)
	}
	if err != nil {
		x.cancel(ctx)
		return Result{}, err
	}
	return x.result(h)
}

// move sends READY, transfers the bytes meanwhile, and returns the header of READY's answer.
func (x *exchange) move(ctx context.Context) (http.Header, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	answers, completions, written := make(chan answer, 1), make(chan error, 1), make(chan struct{}, 1)
	trace := &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) {
		select {
		case written <- struct{}{}:
		default: // net/http has sent it again
		}
	}}
	r, err := x.request(httptrace.WithClientTrace(ctx, trace), "ready") // here, where the program can recover if Sign panics
	if err != nil {
		return nil, err
	}
	go func() {
		h, err := x.do(r, "ready")
		answers <- answer{h, err}
	}()
	if x.Op == Put {
		if err := x.write(ctx, written, answers); err != nil {
			return nil, err
		}
	}
	go func() { completions <- x.complete(ctx) }()

	select {
	case a := <-answers:
		if a.err != nil || x.Op == Put { // the server has all bytes, also if the acknowledgement is lost
			return a.h, a.err
		}
		select { // the answer may overtake the bytes, which are there when the immediate data is
		case err := <-completions:
			return a.h, err
		case <-time.After(immediateTime):
			return nil, fmt.Errorf("the server has answered READY, and no immediate data has come for %v", immediateTime)
		}
	case err := <-completions:
		if err == nil {
			a := <-answers
			return a.h, a.err
		}
		x.cancel(ctx) // and READY's answer comes soon
		select {
		case a := <-answers:
			if a.err == nil && x.Op == Put {
				return a.h, nil
			}
			return nil, fmt.Errorf("%w; READY: %w", err, cmp.Or(a.err, errors.New("success")))
		case <-time.After(cancelTime):
			return nil, err
		}
	}
}

// request makes and signs the request of a step.
func (x *exchange) request(ctx context.Context, step string) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(x.client.URL, "/")+Path+step, nil)
	if err != nil {
		return nil, err
	}
	h := r.Header
	set(h, "protocol", Protocol)
	switch step {
	case "prepare":
		token := s3rdma.QPToken{QPNum: x.Peer.QPNum, GID: x.Peer.GID, Port: uint8(x.Peer.Port), LID: x.Peer.LID}
		set(h, "op", string(x.Op))
		set(h, "target", x.Target)
		set(h, "size", strconv.FormatInt(x.Size, 10))
		set(h, "offset", strconv.FormatInt(x.Offset, 10))
		set(h, "psn", fmt.Sprintf("%06x", x.Peer.PSN))
		set(h, "cookie", fmt.Sprintf("%08x", x.Cookie))
		set(h, "token", token.String())
	case "ready":
		set(h, "session", x.session)
		set(h, "cookie", fmt.Sprintf("%08x", x.Cookie))
		set(h, "qpn", fmt.Sprintf("%x", x.Peer.QPNum))
		set(h, "mr-addr", fmt.Sprintf("%x", x.mem.MR.Addr()+uint64(x.mem.Offset)))
		set(h, "mr-rkey", fmt.Sprintf("%x", x.mem.MR.RKey()))
	case "cancel":
		set(h, "session", x.session)
	}
	if x.client.Sign != nil {
		err = x.client.Sign(r)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.ToUpper(step), err)
	}
	return r, err
}

// send makes and sends a request, and returns the header of its success.
func (x *exchange) send(ctx context.Context, step string) (http.Header, error) {
	r, err := x.request(ctx, step)
	if err != nil {
		return nil, err
	}
	return x.do(r, step)
}

// do sends a request, and returns the header of its success.
func (x *exchange) do(r *http.Request, step string) (http.Header, error) {
	h, err := x.roundTrip(r, step)
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.ToUpper(step), err)
	}
	return h, err
}

func (x *exchange) roundTrip(r *http.Request, step string) (http.Header, error) {
	c := *http.DefaultClient
	if x.client.HTTP != nil {
		c = *x.client.HTTP
	}
	// A redirect would pass on the token and the signature.
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := c.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if step == "prepare" {
		x.http2 = resp.ProtoMajor >= 2
	}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
	switch {
	case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNoContent:
		err = &Error{resp.StatusCode, fmt.Sprintf("%.500q", strings.TrimSpace(string(body)))}
		if step == "prepare" && useHTTP(resp) {
			err = fmt.Errorf("%w: %w", err, errors.ErrUnsupported)
		}
	case step != "cancel" && get(resp.Header, "protocol") != Protocol:
		err = fmt.Errorf("the answer has no header of %s: %w", Protocol, errors.ErrUnsupported)
	}
	return resp.Header, err
}

// useHTTP reports whether HTTP may succeed where PREPARE has not: at a server that does not have
// the protocol, or not for so many bytes.
func useHTTP(r *http.Response) bool {
	switch r.StatusCode {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed:
		return get(r.Header, "protocol") == ""
	case http.StatusNotImplemented, http.StatusRequestEntityTooLarge:
		return true
	}
	return get(r.Header, "protocol-status") == noStatus
}

// cancel sends CANCEL, also after ctx has ended. The server's deadlines do the same if it fails.
func (x *exchange) cancel(ctx context.Context) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTime)
	defer stop()
	if r, err := x.request(ctx, "cancel"); err == nil {
		r.Close = !x.http2 // or else the end of ctx may end the next request on the connection: see s3rdma.Client.disconnect
		x.do(r, "cancel")
	}
}

// connect connects the queue pair to that of PREPARE's answer.
func (x *exchange) connect(h http.Header) (err error) {
	n := numbers{h: h}
	psn := uint32(n.get("psn", 16, 24))
	if x.Op == Put {
		x.addr, x.rkey = n.get("mr-addr", 16, 64), uint32(n.get("mr-rkey", 16, 32))
	}
	hex, ok := strings.CutPrefix(get(h, "reply"), okReply)
	token, err := s3rdma.ParseQPToken(hex)
	switch {
	case !ok:
		return fmt.Errorf("answer to PREPARE: reply %.40q, want %s and a token", get(h, "reply"), okReply)
	case err != nil:
		return fmt.Errorf("answer to PREPARE: %w", err)
	case n.err != nil:
		return fmt.Errorf("answer to PREPARE: %w", n.err)
	case psn == 0 || x.session == "":
		return fmt.Errorf("answer to PREPARE: PSN %#x and session %.40q", psn, x.session)
	}
	opt := x.client.Connect
	opt.Access = 0
	if x.Op == Get {
		opt.Access = verbs.AccessRemoteWrite
	}
	if err := x.qp.Connect(x.Peer, verbs.QPAddr{QPNum: token.QPNum, PSN: psn, GID: token.GID, LID: token.LID}, opt); err != nil {
		return err
	}
	if x.Op == Get {
		_, err = x.qp.PostRecv(verbs.RecvWR{})
	}
	return err
}

// write posts the WRITE of a PUT.
func (x *exchange) write(ctx context.Context, written <-chan struct{}, answers <-chan answer) error {
	var delayed <-chan time.Time
	for waiting := x.client.WriteDelay > 0; waiting; {
		select {
		case <-written:
			delayed = time.After(x.client.WriteDelay)
		case <-delayed:
			waiting = false
		case a := <-answers: // written never comes if READY could not be sent
			return cmp.Or(a.err, errors.New("READY was answered before the WRITE"))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	_, err := x.qp.PostSend(verbs.SendWR{
		Opcode: verbs.OpRDMAWriteImm, Flags: verbs.SendSignaled, Imm: x.Cookie, RemoteAddr: x.addr, RKey: x.rkey,
		SGL: []verbs.SGE{x.mem.MR.SGE(x.mem.Offset, x.mem.Size)},
	})
	return err
}

// complete waits for the completion of the transfer.
func (x *exchange) complete(ctx context.Context) error {
	wc, err := x.qp.SendCQ().Next(ctx)
	if err == nil && x.Op == Get && (wc.Opcode != verbs.WCRecvRDMAImm || wc.Imm() != x.Cookie || int64(wc.ByteLen) != x.Size) {
		err = fmt.Errorf("the server has sent %v of %d bytes with immediate data %08x, want a WRITE of %d with %08x", wc.Opcode, wc.ByteLen, wc.Imm(), x.Size, x.Cookie)
	}
	return err
}

// result checks READY's answer.
func (x *exchange) result(h http.Header) (Result, error) {
	n := numbers{h: h}
	size, cookie := n.get("bytes-transferred", 10, 63), uint32(n.get("cookie", 16, 32))
	res := Result{Object: Object{ETag: get(h, "etag"), VersionID: get(h, "version-id")}, Checksum: get(h, "checksum")}
	switch {
	case n.err != nil:
		return Result{}, fmt.Errorf("answer to READY: %w", n.err)
	case int64(size) != x.Size || cookie != x.Cookie:
		return Result{}, fmt.Errorf("answer to READY: the server has moved %d bytes with cookie %08x, want %d with %08x", size, cookie, x.Size, x.Cookie)
	}
	if b := x.mem.MR.Bytes(); x.Op == Put && strings.HasPrefix(res.Checksum, crcName) && b != nil { // nil: a GPU's
		if own := checksum(b[x.mem.Offset:][:x.mem.Size]); own != res.Checksum {
			return Result{}, fmt.Errorf("answer to READY: the stored object has checksum %.40q, and the memory %q: put it again", res.Checksum, own)
		}
	}
	return res, nil
}
