//go:build linux

package hipobj

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// waitTime is more than anything takes.
const waitTime = 20 * time.Second

func TestMain(m *testing.M) { labtest.Main(m) }

// farOffset is where the bytes of the object /b/far begin.
const farOffset = 5 << 30

// memStore is a Store in memory.
type memStore struct {
	objects sync.Map                                  // []byte by target
	onPut   func(ctx context.Context, b []byte) error // called before a PUT is stored, unless nil
}

func (s *memStore) Get(_ context.Context, r Request, b []byte) (Object, error) {
	v, ok := s.objects.Load(r.Target)
	if !ok {
		return Object{}, fs.ErrNotExist
	}
	all := v.([]byte)
	if r.Target == "/b/far" {
		r.Offset -= farOffset
	}
	if r.Offset < 0 || r.Offset > int64(len(all)) || copy(b, all[r.Offset:]) < len(b) {
		return Object{}, &Error{http.StatusRequestedRangeNotSatisfiable, "the object is shorter"}
	}
	return Object{ETag: fmt.Sprint("etag-", len(all)), VersionID: "v1"}, nil
}

func (s *memStore) Put(ctx context.Context, r Request, b []byte) (Object, error) {
	if s.onPut != nil {
		if err := s.onPut(ctx, b); err != nil {
			return Object{}, err
		}
	}
	s.objects.Store(r.Target, bytes.Clone(b))
	return Object{ETag: fmt.Sprint("etag-", len(b))}, nil
}

func (s *memStore) get(target string) []byte {
	v, _ := s.objects.Load(target)
	b, _ := v.([]byte)
	return b
}

// site is a server of a test.
type site struct {
	*Server
	handler *Handler
	store   *memStore
	url     string
}

func user(r *http.Request, _ Op, _ *url.URL) (string, error) {
	if r.Header.Get("user") == "" {
		return "", fs.ErrPermission
	}
	return r.Header.Get("user"), nil
}

func anyPeer(*http.Request, verbs.GID) error { return nil }

// newSite serves until the test ends. All sessions must have ended by then.
func newSite(t *testing.T, dev *uverbs.Context, opt Options) *site {
	t.Helper()
	s := &site{Server: labtest.Must(NewServer(dev, opt))(t), store: &memStore{}}
	s.handler = &Handler{Server: s.Server, Store: s.store, User: user, AllowPeer: anyPeer}
	ts := httptest.NewServer(s.handler)
	s.url = ts.URL
	t.Cleanup(func() {
		ts.Close()
		labtest.Check(t, s.Close())
		if st := s.Stats(); st.Sessions != 0 || st.Memory != 0 || len(s.sessions) != 0 {
			t.Errorf("%d sessions with %d bytes are left", st.Sessions, st.Memory)
		}
	})
	return s
}

// fast has timeouts for QPs that do not answer: a quarter of a second in all, within which a slow machine answers.
var fast = uverbs.ConnectOptions{Timeout: 14, RetryCount: 3}

// newClient makes a client of an account, with a PD of its own.
func (s *site) newClient(t *testing.T, dev *uverbs.Context, account string) *Client {
	t.Helper()
	c := &Client{URL: s.url, PD: labtest.Made(dev.AllocPD())(t), HTTP: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(c.HTTP.CloseIdleConnections)
	c.Sign = func(r *http.Request) error {
		r.Header.Set("user", account)
		return nil
	}
	return c
}

// memory registers a copy of b.
func (c *Client) memory(t *testing.T, b []byte) Memory {
	t.Helper()
	mr := labtest.Made(c.PD.AllocMR(len(b), verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead, uverbs.MROptions{}))(t)
	copy(mr.Bytes(), b)
	return Memory{MR: mr}
}

// prepared is a client that has sent PREPARE and connected its queue pair, and the server's
// session.
func (s *site) prepared(t *testing.T, c *Client, op Op, target string, m Memory) (*exchange, *Session) {
	t.Helper()
	x := labtest.Must(c.begin(Request{Op: op, Target: target}, m))(t)
	t.Cleanup(func() { x.qp.Close() })
	h := labtest.Must(x.send(t.Context(), "prepare"))(t)
	x.session = get(h, "session")
	labtest.Check(t, x.connect(h))
	s.mu.Lock()
	defer s.mu.Unlock()
	return x, s.sessions[x.session]
}

// current returns the session's state.
func (x *Session) current() state {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.state
}

// transport is a RoundTripper that is called with the step of a request, and may call next.
type transport func(step string, next func() (*http.Response, error)) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) {
	return f(strings.TrimPrefix(r.URL.Path, Path), func() (*http.Response, error) { return http.DefaultTransport.RoundTrip(r) })
}

// post posts a request, and returns how it completes.
func (x *exchange) post(t *testing.T, wr verbs.SendWR) error {
	t.Helper()
	wr.Flags |= verbs.SendSignaled
	if wr.SGL == nil {
		wr.SGL = []verbs.SGE{x.mem.MR.SGE(0, x.mem.Size)}
	}
	if _, err := x.qp.PostSend(wr); err != nil {
		return err
	}
	_, err := x.qp.SendCQ().Next(labtest.Within(t, waitTime))
	return err
}

// statusOfAnswer returns the HTTP status of an error, or 200.
func statusOfAnswer(err error) int {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Status
	}
	if err != nil {
		return 0
	}
	return http.StatusOK
}

// each runs a test on each device that the protocol runs on.
func each(t *testing.T, test func(t *testing.T, dev *uverbs.Context)) {
	labtest.EachClean(t, func(t *testing.T, device string) {
		dev := labtest.OpenDevice(t, device)
		if dev.Device().IWARP() {
			t.Skip("iWARP has no immediate data")
		}
		test(t, dev)
	})
}
