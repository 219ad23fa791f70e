package s3rdma

import (
	"errors"
	"net/http"
	"strings"
)

// Transport is an [http.RoundTripper] that moves the bodies of objects by RDMA, and by HTTP where that
// is not possible. A PUT whose path has one segment may make a bucket, and uses HTTP.
type Transport struct {
	Base   http.RoundTripper // nil means [http.DefaultTransport]
	Client *Client
	// Sign signs a request that is ready to be sent, once for each attempt. The token is part of what is
	// signed, so that this is no job for what calls the Transport: without Sign, requests that are signed
	// use HTTP.
	Sign func(*http.Request) error
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	c, r, body := t.Client, req.Clone(req.Context()), req.Body
	defer func() { // also if Sign or the body panics
		if body != nil {
			body.Close()
		}
	}()
	if y, ok := r.Body.(*Body); ok && r.ContentLength <= 0 {
		r.ContentLength = int64(y.Len()) // as http.NewRequest does for bodies that it knows
	}
	var o *Offer
	var err error
	if t.signed(req) {
		if isObject(req) {
			c.fallback(req, bySigned, errors.New("set Transport.Sign, or use Client.Offer before the signature"))
		}
	} else {
		o, err = c.offer(r, t.send)
	}
	if o == nil && err == nil {
		body = nil // send closes it
		return t.send(r)
	}
	if err != nil {
		return nil, err
	}
	defer o.Close()
	resp, lost := t.send(r)
	if resp, err = o.Answer(resp, lost); err == nil {
		return resp, nil
	}
	again := req.Clone(req.Context())
	switch {
	case errors.Is(err, ErrResend):
		if req.Method == http.MethodPut {
			again.Body, again.ContentLength, again.GetBody = o.Body(), int64(len(o.data)), nil
		}
	case req.Method == http.MethodGet && lost != nil && req.Context().Err() == nil:
		// net/http would have sent it again, if a connection that it has used before has ended.
		c.fallback(req, byFailed, err)
	default:
		return nil, err
	}
	return t.send(again)
}

// signed reports whether a request has a signature that does not cover a token.
func (t *Transport) signed(r *http.Request) bool {
	return r.URL.Query().Has("X-Amz-Signature") || t.Sign == nil && strings.HasPrefix(r.Header.Get("Authorization"), "AWS")
}

// CloseIdleConnections calls that of Base, if it has one: see [http.Client.CloseIdleConnections].
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

func (t *Transport) send(r *http.Request) (*http.Response, error) {
	if t.Sign != nil && !r.URL.Query().Has("X-Amz-Signature") {
		body := r.Body
		defer func() { // also if Sign panics
			if body != nil {
				body.Close()
			}
		}()
		if err := t.Sign(r); err != nil {
			return nil, err
		}
		body = nil // Base closes it
	}
	return t.base().RoundTrip(r)
}
