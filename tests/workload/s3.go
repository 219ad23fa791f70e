package workload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/s3rdma/hipobj"
	"github.com/goverbs/verbs/uverbs"
)

// S3 puts and gets objects by package hipobj, with HTTP over TCP. Each object has a connection of its own. siw cannot.
var S3 = &Layer{Name: "s3rdma", Listen: listenS3, Dial: dialS3}

// s3Memory is the size of the largest object.
const s3Memory = 1 << 20

// s3Connect has about the time of the connection manager's connections for an acknowledgement, a second.
var s3Connect = uverbs.ConnectOptions{Timeout: 18}

// s3Store has the objects of all keys: it makes what is read, and checks what is written.
type s3Store struct{ report func(error) }

func s3Object(r hipobj.Request) (k Key, seq uint64, err error) {
	_, err = fmt.Sscanf(r.Target, "/%x/%d", (*uint64)(&k), &seq)
	return k, seq, err
}

func (s s3Store) Get(_ context.Context, r hipobj.Request, b []byte) (hipobj.Object, error) {
	k, seq, err := s3Object(r)
	if err == nil {
		k.Fill(b, seq)
	}
	return hipobj.Object{}, err
}

func (s s3Store) Put(_ context.Context, r hipobj.Request, b []byte) (hipobj.Object, error) {
	k, seq, err := s3Object(r)
	if err == nil {
		err = k.Check("object", b, seq, len(b))
	}
	if err != nil {
		s.report(err)
	}
	return hipobj.Object{}, err
}

func listenS3(ctx context.Context, addr string, report func(error)) (*Server, error) {
	l, dev, err := listenTCP(addr)
	if err != nil {
		return nil, err
	}
	objects, err := hipobj.NewServer(dev, hipobj.Options{PrepareTime: time.Minute, MoveTime: 5 * time.Minute, Connect: s3Connect})
	if err != nil {
		return nil, errors.Join(err, l.Close(), dev.Close())
	}
	handler := &hipobj.Handler{
		Server: objects, Store: s3Store{report},
		User: func(*http.Request, hipobj.Op, *url.URL) (string, error) { return "account", nil },
	}
	return serveHTTP(ctx, l, handler, report, func() error { return errors.Join(objects.Close(), dev.Close()) }), nil
}

// listenTCP listens, and opens the device of the same address.
func listenTCP(addr string) (net.Listener, *uverbs.Context, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, nil, err
	}
	dev, err := uverbs.Open(l.Addr().(*net.TCPAddr).IP.String())
	if err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return l, dev, nil
}

type s3Session struct {
	simple
	hipobj.Client
	dev  *uverbs.Context
	mr   *uverbs.MR
	mine Key
	seq  uint64
}

// dialS3 opens the device from whose address TCP reaches the server.
func dialS3(ctx context.Context, addr string) (_ Session, err error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c.Close()
	s := &s3Session{mine: Key(rand.Uint64())}
	if s.dev, err = uverbs.Open(c.LocalAddr().(*net.TCPAddr).IP.String()); err != nil {
		return nil, err
	}
	s.Client = hipobj.Client{URL: "http://" + addr, HTTP: &http.Client{Transport: &http.Transport{}}, Connect: s3Connect}
	if s.PD, err = s.dev.AllocPD(); err == nil {
		s.mr, err = s.PD.AllocMR(s3Memory, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, uverbs.MROptions{})
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Round puts an object of n bytes, and gets another.
func (s *s3Session) Round(ctx context.Context, n int) error {
	n = min(max(n, 1), s3Memory)
	s.seq++
	m, b := hipobj.Memory{MR: s.mr, Size: n}, s.mr.Bytes()[:n]
	s.mine.Fill(b, s.seq)
	if _, err := s.Put(ctx, fmt.Sprintf("/%x/%d", uint64(s.mine), s.seq), m); err != nil {
		return fmt.Errorf("put: %w", err)
	}
	clear(b)
	if _, err := s.Get(ctx, fmt.Sprintf("/%x/%d", uint64(s.mine.Peer()), s.seq), 0, m); err != nil {
		return fmt.Errorf("get: %w", err)
	}
	return s.mine.Peer().Check("object", bytes.Clone(b), s.seq, n)
}

func (s *s3Session) Close() error {
	s.HTTP.CloseIdleConnections()
	var errs []error
	for _, c := range []interface{ Close() error }{s.mr, s.PD, s.dev} {
		if err := c.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
