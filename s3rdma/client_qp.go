package s3rdma

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

const (
	idleTime    = time.Minute // of a queue pair; elbencho's server drops those of 5 minutes
	sweepMost   = 16          // queue pairs that a request disconnects
	disconnects = 5 * time.Second
)

type sender = func(*http.Request) (*http.Response, error)

// clientQP is a queue pair by which a server reaches the memory: a DC target, for all of them, or an
// RC queue pair that is connected to one, for a transfer at a time. The client posts nothing to it.
type clientQP struct {
	qp  *uverbs.QP
	cq  *uverbs.CQ
	srq *uverbs.SRQ // of the DC target

	made     time.Time
	host     string // of the server
	id       string // that the server has given the connection
	do       sender // of requests to it
	http2    bool   // or later: requests to the server share a connection
	used     time.Time
	declined bool // the last answer has declined the token
}

func (q *clientQP) makeDCT(c *Client) (err error) {
	if q.cq, err = c.dev.CreateCQ(uverbs.CQOptions{Depth: 1}); err != nil {
		return err
	}
	if q.srq, err = c.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 1, MaxSGE: 1}); err != nil {
		return err
	}
	if q.qp, err = c.pd.CreateQP(uverbs.QPOptions{Type: verbs.DCT, RecvCQ: q.cq, SRQ: q.srq, DCKey: c.opt.DCKey}); err != nil {
		return err
	}
	return q.qp.StartDC(c.gid, c.opt.QP)
}

func (q *clientQP) close() error {
	var errs []error
	if q.qp != nil {
		errs = append(errs, q.qp.Close())
	}
	if q.srq != nil {
		errs = append(errs, q.srq.Close())
	}
	if q.cq != nil {
		errs = append(errs, q.cq.Close())
	}
	return errors.Join(errs...)
}

// works reports whether a server can use the queue pair: it is in the state that it was left in, and
// the device is there.
func (q *clientQP) works() bool {
	a, err := q.qp.Query()
	return err == nil && (a.State == verbs.StateRTS || q.srq != nil && a.State == verbs.StateRTR)
}

var errPaused = errors.New("the server has no RDMA, as it seems: the next try is in a minute at the latest")

// takeQP returns a queue pair for a transfer. name is the scheme and the host of the server's URL.
func (c *Client) takeQP(ctx context.Context, name string, do sender) (*clientQP, error) {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, errClientClosed
		}
		h := cmp.Or(c.hosts[name], &host{})
		h.used = time.Now()
		paused := h.used.Before(h.resume)
		var q *clientQP
		if n := len(h.idle); c.dc != nil {
			q = c.dc
		} else if n > 0 {
			q, paused = h.idle[n-1], false
			h.idle = h.idle[:n-1]
		}
		old := c.sweep()
		c.mu.Unlock()
		for _, q := range old {
			c.disconnect(q)
		}
		switch {
		case paused:
			return nil, errPaused
		case q == nil:
			return c.connect(ctx, name, do)
		case q == c.dc && !q.works():
			return nil, fmt.Errorf("the DC target on %s has failed: make another client", c.dev.Device().Name)
		case q == c.dc || time.Since(q.used) < idleTime && q.works():
			return q, nil
		}
		c.disconnect(q)
	}
}

// putQP takes a queue pair back. If the server has declined the last two tokens, it may have lost its
// end: the next request connects another one.
func (c *Client) putQP(q *clientQP, declined bool) {
	if q == c.dc {
		return
	}
	lost := declined && q.declined
	q.used, q.declined = time.Now(), declined
	if lost {
		c.disconnect(q)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.host(q.host)
	h.idle = append(h.idle, q)
}

// pause makes no more offers to a server for a while, unless it has answered one before.
func (c *Client) pause(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.host(name); !h.knows {
		h.resume = time.Now().Add(clientPause)
	}
}

// connect makes an RC queue pair and connects it to one of the server, as elbencho does it: the
// server has connected its own before it answers, and uses it no earlier than for a token.
func (c *Client) connect(ctx context.Context, name string, do sender) (made *clientQP, err error) {
	q := &clientQP{made: time.Now(), host: name, do: do}
	defer func() { // also if do panics
		if made != nil {
			return
		}
		err = fmt.Errorf("connect queue pair to %s%s: %w", name, PathConnect, err)
		if q.id != "" { // the server has its end
			c.disconnect(q)
		} else {
			err = errors.Join(err, q.close())
		}
	}()
	if q.cq, err = c.dev.CreateCQ(uverbs.CQOptions{Depth: 1}); err != nil {
		return nil, err
	}
	if q.qp, err = c.pd.CreateQP(uverbs.QPOptions{SendCQ: q.cq, RecvCQ: q.cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}); err != nil {
		return nil, err
	}
	local, err := q.qp.AddrOn(c.gid)
	if err != nil {
		return nil, err
	}
	remote, err := c.exchange(ctx, q, local)
	if err != nil {
		return nil, err
	}
	if err = q.qp.Connect(local, remote, c.opt.QP); err != nil {
		return nil, err
	}
	c.learn(name)
	return q, nil
}

// exchange tells a server the address of a queue pair, and returns that of the server's. It sets the
// server's id of the connection also with an error.
func (c *Client) exchange(ctx context.Context, q *clientQP, local verbs.QPAddr) (remote verbs.QPAddr, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, q.host+PathConnect, nil)
	if err != nil {
		return remote, err
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	req.Header.Set(HeaderToken, QPToken{QPNum: local.QPNum, GID: local.GID, Port: uint8(c.gid.Port), LID: local.LID}.String())
	req.Header.Set(HeaderPSN, fmt.Sprintf("%06x", local.PSN))
	resp, err := q.do(req)
	if err != nil {
		return remote, err
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
	resp.Body.Close()
	id := resp.Header.Get(HeaderSession)
	reply, ok := strings.CutPrefix(resp.Header.Get(HeaderReply), "200:")
	if resp.StatusCode != http.StatusOK || !ok || id == "" {
		if resp.StatusCode != http.StatusServiceUnavailable { // it has too many queue pairs now
			c.pause(q.host)
		}
		return remote, fmt.Errorf("%s, %s %.100q, session %.40q: want 200, 200:TOKEN and a session: %s", resp.Status, HeaderReply, resp.Header.Get(HeaderReply), id, bytes.TrimSpace(text))
	}
	q.id, q.http2 = id, resp.ProtoMajor >= 2
	peer, err := ParseQPToken(reply)
	if err != nil {
		return remote, err
	}
	psn, err := parseHex(resp.Header.Get(HeaderPSN), 24)
	if err != nil {
		return remote, fmt.Errorf("%s: %w", HeaderPSN, err)
	}
	return verbs.QPAddr{QPNum: peer.QPNum, PSN: uint32(psn), GID: peer.GID, LID: peer.LID}, nil
}

// disconnect closes an RC queue pair and tells the server, which otherwise keeps its own for minutes.
func (c *Client) disconnect(q *clientQP) {
	if err := q.close(); err != nil {
		c.log.Warn("queue pair is not closed", "host", q.host, "err", err)
	}
	c.jobs.Go(func() {
		defer func() { // of do: nobody could recover it here
			if v := recover(); v != nil {
				c.log.Error("request to disconnect a queue pair panics", "host", q.host, "panic", v, "stack", string(debug.Stack()))
			}
		}()
		ctx, cancel := context.WithTimeout(context.Background(), disconnects)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, q.host+PathDisconnect, nil)
		if err != nil {
			return
		}
		req.Header.Set(HeaderSession, q.id)
		// net/http may use a connection of HTTP/1 again before the answer without a body is here, and if
		// ctx ends in between, it ends the other request.
		req.Close = !q.http2
		if resp, err := q.do(req); err == nil {
			io.Copy(io.Discard, io.LimitReader(resp.Body, 4096))
			resp.Body.Close()
		}
	})
}
