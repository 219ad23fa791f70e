package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// client moves objects between a server and its memory, one at a time. It has a connection of its
// own, so that a transfer that is cancelled breaks no other.
type client struct {
	url      string
	http     http.Client
	mem      []byte // registered while ep is not nil: the server, if it is hostile, changes it at any time
	by       string // how the last object came or went: "rdma" or "http"
	endpoint string // of the server's RDMA; empty without
	dialer   cm.Dialer
	ep       *cm.Endpoint
	mr       *uverbs.MR
	session  string
	end      verbs.WCOpcode // of the message after the last WRITE
}

// newClient makes a client of the server at a URL. Without RDMA at the server, or here, it uses
// HTTP.
func newClient(ctx context.Context, t *cm.Transport, url string, mem []byte) (*client, error) {
	c := &client{url: url, mem: mem}
	resp, err := c.request(ctx, http.MethodHead, "", "", "", nil)
	if err != nil {
		return nil, err
	}
	resp.Body.Close()
	c.endpoint = resp.Header.Get(endpointHeader)
	c.dialer = cm.Dialer{Transport: t, Options: cm.Options{
		Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
		Setup: func(ep *cm.Endpoint) (err error) {
			if c.mr, err = ep.RegisterMR(c.mem, verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite); err == nil {
				_, err = ep.QP.PostRecv(verbs.RecvWR{})
			}
			return err
		},
	}}
	return c, nil
}

// connect makes a connection, unless there is one. Without one, the client uses HTTP.
func (c *client) connect(ctx context.Context) error {
	if c.ep != nil && c.ep.Err() != nil {
		if err := c.hangUp(); err != nil {
			return err
		}
	}
	if c.ep != nil || c.endpoint == "" || len(c.mem) == 0 {
		return nil
	}
	ep, err := c.dialer.Dial(ctx, c.endpoint)
	if err == nil {
		c.ep = ep
		if len(ep.PrivateData) < sessionLen {
			err = fmt.Errorf("%s is no server of S3 over RDMA", c.endpoint)
		} else if _, err = ep.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}); err == nil {
			_, err = ep.SendCQ.Next(ctx) // the server waits for this message
		}
	}
	if err != nil {
		if err := c.hangUp(); err != nil {
			return err
		}
		if ctx.Err() == nil {
			log.Printf("using HTTP: %v", err)
			c.endpoint = ""
		}
		return ctx.Err()
	}
	c.session = hex.EncodeToString(ep.PrivateData[:sessionLen])
	return nil
}

// hangUp ends the connection. After an error the server may still write to mem.
func (c *client) hangUp() error {
	if c.ep == nil {
		return nil
	}
	if err := c.ep.Close(); err != nil {
		return fmt.Errorf("%d bytes of memory are still open to %s: %w", len(c.mem), c.endpoint, err)
	}
	c.ep = nil
	return nil
}

// close closes the client. Without an error mem belongs to the caller again.
func (c *client) close() error {
	c.http.CloseIdleConnections()
	return c.hangUp()
}

// offer returns the token for the first n bytes of mem, or "" without a connection.
func (c *client) offer(n int) string {
	if c.ep == nil || n == 0 {
		return ""
	}
	return token{c.session, c.mr.RKey(), c.mr.Addr(), uint64(n)}.String()
}

// memoryFor returns memory of an object's size.
func (c *client) memoryFor(ctx context.Context, name string) ([]byte, error) {
	resp, err := c.request(ctx, http.MethodHead, name, "", "", nil)
	if err == nil && (resp.ContentLength < 0 || resp.ContentLength > maxObject) {
		err = fmt.Errorf("%s: the server announces %d bytes of at most %d", name, resp.ContentLength, maxObject)
	}
	if err != nil {
		return nil, err
	}
	return make([]byte, resp.ContentLength), nil
}

// put stores the first n bytes of mem.
func (c *client) put(ctx context.Context, name string, n int) error {
	if err := c.connect(ctx); err != nil {
		return err
	}
	sum, offer, body := checksum(c.mem[:n]), c.offer(n), c.mem[:0]
	if offer == "" {
		body = c.mem[:n]
	}
	resp, err := c.request(ctx, http.MethodPut, name, offer, sum, body)
	if err == errDeclined {
		resp, err = c.request(ctx, http.MethodPut, name, "", sum, c.mem[:n])
	}
	if err != nil {
		return err
	}
	resp.Body.Close()
	if got := resp.Header.Get(checksumHeader); got != sum {
		return fmt.Errorf("PUT %s: the server stored %d bytes with CRC-32C %.20q, not %q", name, n, got, sum)
	}
	return nil
}

// get fetches an object to the start of mem and returns its size.
func (c *client) get(ctx context.Context, name string) (n int, err error) {
	if err := c.connect(ctx); err != nil {
		return 0, err
	}
	resp, err := c.request(ctx, http.MethodGet, name, c.offer(len(c.mem)), "", nil)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	moved := resp.ContentLength
	if c.by == "rdma" {
		moved, err = strconv.ParseInt(resp.Header.Get(bytesHeader), 10, 64)
	}
	if err != nil || moved < 0 || moved > int64(len(c.mem)) {
		return 0, c.abandon(fmt.Errorf("GET %s: the server announces %d bytes of at most %d", name, moved, len(c.mem)))
	}
	if n = int(moved); c.by != "rdma" {
		_, err = io.ReadFull(resp.Body, c.mem[:n])
	} else if n > 0 {
		err = c.awaitWrites(ctx, n)
	}
	if err != nil {
		return 0, fmt.Errorf("GET %s: %w", name, err)
	}
	if sum, want := checksum(c.mem[:n]), resp.Header.Get(checksumHeader); sum != want {
		return 0, fmt.Errorf("GET %s: CRC-32C of the %d bytes that came is %s, not %.20q", name, n, sum, want)
	}
	return n, nil
}

// awaitWrites waits for the message after the last WRITE, and prepares for that of the next object.
func (c *client) awaitWrites(ctx context.Context, n int) error {
	wc, err := c.ep.RecvCQ.Next(ctx)
	if err == nil && wc.Opcode == verbs.WCRecvRDMAImm && wc.Imm() != uint32(n) {
		err = fmt.Errorf("%d bytes were written, not %d", wc.Imm(), n)
	}
	if err == nil {
		c.end = wc.Opcode
		_, err = c.ep.QP.PostRecv(verbs.RecvWR{})
	}
	if err != nil {
		return c.abandon(c.ep.Reason(ctx, err))
	}
	return nil
}

// abandon ends the connection in the middle of a transfer: until then the server may write to mem.
func (c *client) abandon(err error) error {
	if cerr := c.hangUp(); cerr != nil {
		return fmt.Errorf("%w; %w", err, cerr)
	}
	return err
}

// request sends a request with an offer of memory or a body. If it fails, neither is in use any
// more.
func (c *client) request(ctx context.Context, method, name, offer, sum string, data []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url+(&url.URL{Path: "/" + name}).EscapedPath(), nil)
	if err != nil {
		return nil, err
	}
	if len(data) > 0 {
		// The transport may read the body after Do has returned, until it closes it.
		b := &body{Reader: bytes.NewReader(data), closed: make(chan struct{})}
		req.Body, req.ContentLength = b, int64(len(data))
		defer func() { <-b.closed }()
	}
	if sum != "" {
		req.Header.Set(checksumHeader, sum)
	}
	if offer != "" {
		req.Header.Set(tokenHeader, offer)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if offer != "" {
			err = c.abandon(err)
		}
		return nil, err
	}
	declined := offer != "" && resp.Header.Get(replyHeader) == "501"
	if c.by = "http"; offer != "" && resp.Header.Get(replyHeader) == "200" {
		c.by = "rdma"
	}
	switch {
	case resp.StatusCode == http.StatusOK:
		if !declined {
			return resp, nil
		}
		if err = c.hangUp(); err == nil { // the server does not know the session any more: dial again next time
			return resp, nil
		}
	case declined && resp.StatusCode == http.StatusNotImplemented:
		if err = c.hangUp(); err == nil {
			err = errDeclined
		}
	default:
		var answer struct{ Code, Message string }
		xml.NewDecoder(io.LimitReader(resp.Body, 4096)).Decode(&answer) // there may be none
		if err = fmt.Errorf("%s %s: %s", method, name, resp.Status); answer.Code != "" {
			err = fmt.Errorf("%w: %.50s: %.500s", err, answer.Code, answer.Message)
		}
		if offer != "" && resp.StatusCode >= 500 { // it may have failed in the middle of a transfer
			err = c.abandon(err)
		}
	}
	resp.Body.Close()
	return nil, err
}

// body is a request's body. Requests are not repeated with it, as it has no GetBody.
type body struct {
	io.Reader
	once   sync.Once
	closed chan struct{}
}

func (b *body) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}
