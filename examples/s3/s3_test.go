//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/examples/s3/awss3"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/s3rdma"
	"github.com/goverbs/verbs/uverbs"
)

// rig is a server of a folder, and a client.
type rig struct {
	c      *s3rdma.Client
	web    *httptest.Server
	hook   func(w http.ResponseWriter, r *http.Request) bool // reports that it has answered
	secret string                                            // the server's

	mu     sync.Mutex
	tokens []string // of requests, "" without
}

// user is the account of clients.
var user = account{AccessKeyID: "key", SecretAccessKey: "secret"}

func start(t *testing.T, rdma bool, listen func(http.Handler) *httptest.Server) *rig {
	t.Helper()
	r := &rig{secret: user.SecretAccessKey}
	root := labtest.Must(os.OpenRoot(t.TempDir()))(t)
	logger := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	owner := func() account { return account{AccessKeyID: user.AccessKeyID, SecretAccessKey: r.secret} }
	handler := func() http.Handler { return owner().check(objects(root)) }
	if rdma {
		dev := labtest.Made(uverbs.Open(labtest.RoCE))(t)
		server := labtest.Made(s3rdma.NewServer(s3rdma.ServerOptions{
			Device: dev, Logger: logger,
			AllowPeer: func(*http.Request, verbs.GID) error { return nil }, // HTTP is on loopback
		}))(t)
		handler = func() http.Handler { return withRDMA(server, owner(), objects(root)) }
	}
	r.web = listen(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !strings.HasPrefix(req.URL.Path, s3rdma.PathRC) {
			r.mu.Lock()
			r.tokens = append(r.tokens, req.Header.Get(s3rdma.HeaderToken))
			r.mu.Unlock()
			if r.hook != nil && r.hook(w, req) {
				return
			}
		}
		handler().ServeHTTP(w, req)
	}))
	t.Cleanup(r.web.Close)
	r.c = labtest.Must(s3rdma.NewClient(s3rdma.ClientOptions{Device: labtest.RoCE, GetSize: partSize, Logger: logger, Do: r.web.Client().Do}))(t)
	t.Cleanup(func() { labtest.Check(t, r.c.Close()) })
	return r
}

// copy puts a file, or gets an object to one, by an SDK.
func (r *rig) copy(t *testing.T, sdk, op, key, file string) error {
	t.Helper()
	ctx := labtest.Within(t, time.Minute)
	return withFile(op, file, func(f *os.File) error {
		if sdk == "minio" {
			return byMinIO(ctx, user, r.c, r.web.Client().Transport, op, labtest.Must(url.Parse(r.web.URL))(t), "bucket", key, f)
		}
		return byAWS(ctx, user, r.c, r.web.Client().Transport, op, r.web.URL, "bucket", key, f)
	})
}

func (r *rig) aws() *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: aws.String(r.web.URL), Region: region, UsePathStyle: true, HTTPClient: r.web.Client(),
		Credentials: credentials.NewStaticCredentialsProvider("key", "secret", ""),
		Retryer:     aws.NopRetryer{}, RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
	}, awss3.RDMA(r.c))
}

// TestSDKs puts and gets objects by both SDKs, in one request and in parts, and where the server has
// no RDMA.
func TestSDKs(t *testing.T) {
	labtest.RequireBoth(t)
	before := labtest.SettledInventory(t)
	t.Cleanup(func() { labtest.CheckLeaks(t, before) })
	for _, sdk := range []string{"aws", "minio"} {
		for _, rdma := range labtest.Few(1, []bool{true, false}) {
			t.Run(fmt.Sprintf("%s/%v", sdk, rdma), func(t *testing.T) {
				r := start(t, rdma, httptest.NewServer)
				dir := t.TempDir()
				for i, size := range []int{1, 100_000, partSize, 2*partSize + 1} {
					in, out, key := filepath.Join(dir, "in"), filepath.Join(dir, fmt.Sprint("out", i)), fmt.Sprint("a key/with ü+", i)
					want := labtest.RandomBytes(i, size)
					labtest.Check(t, os.WriteFile(in, want, 0o600))
					if err := errors.Join(r.copy(t, sdk, "put", key, in), r.copy(t, sdk, "get", key, out)); err != nil {
						t.Errorf("%d bytes: %v", size, err)
					} else if got := labtest.Must(os.ReadFile(out))(t); !bytes.Equal(got, want) {
						t.Errorf("%d bytes: got %d others", size, len(got))
					}
				}
				st := r.c.Stats()
				if rdma && (st.Puts != 6 || st.Gets != 6 || fallbacks(st) > 0) || !rdma && (st.Puts+st.Gets != 0 || fallbacks(st) < 8) || st.Lent != 0 {
					t.Errorf("%+v", st)
				}
			})
		}
	}
}

// TestAWS has what a step of the SDK can do wrong.
func TestAWS(t *testing.T) {
	labtest.Require(t)
	for name, listen := range map[string]func(http.Handler) *httptest.Server{"HTTP": httptest.NewServer, "HTTPS": httptest.NewTLSServer} {
		t.Run(name, func(t *testing.T) {
			r := start(t, true, listen)
			ctx, bucket, key := t.Context(), aws.String("bucket"), aws.String("key")
			put := func(body io.Reader, options ...func(*s3.Options)) error {
				_, err := r.aws().PutObject(ctx, &s3.PutObjectInput{Bucket: bucket, Key: key, Body: body}, options...)
				return err
			}
			supported := func(o *s3.Options) { o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenSupported }
			labtest.Check(t, put(strings.NewReader("first")), put(strings.NewReader("second"), supported))

			// Registered memory is not copied, and the SDK does not close it.
			body := labtest.Must(r.c.NewBody(1000))(t)
			want := labtest.RandomBytes(1, 1000)
			copy(body.Bytes(), want)
			labtest.Check(t, put(body), put(body))
			if st := r.c.Stats(); st.Lent != 1 || st.Puts != 4 || fallbacks(st) != 0 {
				t.Errorf("%+v", st)
			}
			body.Close()

			get, err := r.aws().GetObject(s3rdma.WithSize(ctx, 500), &s3.GetObjectInput{Bucket: bucket, Key: key, Range: aws.String("bytes=500-999")})
			labtest.Check(t, err)
			if got, err := io.ReadAll(get.Body); err != nil || !bytes.Equal(got, want[500:]) || *get.ContentRange != "bytes 500-999/1000" || r.c.Stats().Gets != 1 {
				t.Errorf("GET of a range: %d bytes, %v, %+v", len(got), err, r.c.Stats())
			}
			labtest.Check(t, get.Body.Close())

			// Declined, within one attempt: by HTTPS this would need aws-chunked, which the folder has not.
			if name == "HTTP" {
				r.tokens = nil
				r.hook = func(w http.ResponseWriter, req *http.Request) bool {
					if req.Header.Get(s3rdma.HeaderToken) != "" {
						w.WriteHeader(http.StatusNotImplemented)
						return true
					}
					return false
				}
				labtest.Check(t, put(strings.NewReader("third"), supported))
				get, err := r.aws().GetObject(ctx, &s3.GetObjectInput{Bucket: bucket, Key: key})
				labtest.Check(t, err)
				if got, err := io.ReadAll(get.Body); string(got) != "third" || err != nil || len(r.tokens) != 4 || r.tokens[1] != "" || r.tokens[3] != "" {
					t.Errorf("%q, %v, tokens %q", got, err, r.tokens)
				}
				labtest.Check(t, get.Body.Close())
			}

			// A retry has a token of its own.
			r.tokens = nil
			r.hook = func(w http.ResponseWriter, req *http.Request) bool {
				if len(r.tokens) == 1 {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
				return len(r.tokens) == 1
			}
			labtest.Check(t, put(strings.NewReader("fourth"), func(o *s3.Options) { o.Retryer = retryOnce{} }))
			if len(r.tokens) != 2 || r.tokens[0] == "" || r.tokens[1] == "" || r.tokens[0] == r.tokens[1] {
				t.Errorf("two attempts have the tokens %q", r.tokens)
			}
			r.hook = nil

			_, err = r.aws().GetObject(ctx, &s3.GetObjectInput{Bucket: bucket, Key: aws.String("nothing")})
			if e, ok := errors.AsType[smithy.APIError](err); !ok || e.ErrorCode() != "NoSuchKey" {
				t.Errorf("GET of nothing: %v", err)
			}
			before := len(r.tokens)
			url, err := s3.NewPresignClient(r.aws()).PresignPutObject(ctx, &s3.PutObjectInput{Bucket: bucket, Key: key, Body: strings.NewReader("x")})
			if err != nil || strings.Contains(strings.ToLower(url.URL+fmt.Sprint(url.SignedHeader)), "rdma") || len(r.tokens) != before {
				t.Errorf("presigned: %+v, %v", url, err)
			}
			r.secret = "another"
			if err := put(strings.NewReader("x")); err == nil || !strings.Contains(err.Error(), "SignatureDoesNotMatch") {
				t.Errorf("PUT with a wrong secret: %v", err)
			}
			cancelled, cancel := context.WithCancel(ctx)
			cancel()
			_, err = r.aws().PutObject(cancelled, &s3.PutObjectInput{Bucket: bucket, Key: key, Body: strings.NewReader("x")})
			if !errors.Is(err, context.Canceled) || r.c.Stats().Lent != 0 {
				t.Errorf("cancelled: %v, %+v", err, r.c.Stats())
			}
		})
	}
}

// TestSignature changes requests between the signature and the server.
func TestSignature(t *testing.T) {
	server := user.check(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for name, test := range map[string]struct {
		age    time.Duration
		change func(*http.Request)
		status int
	}{
		"nothing":          {0, func(*http.Request) {}, 200},
		"unsigned headers": {0, func(r *http.Request) { r.Header.Set("User-Agent", "x") }, 200},
		"the token":        {0, func(r *http.Request) { r.Header.Set(s3rdma.HeaderToken, "another") }, 403},
		"a token more":     {0, func(r *http.Request) { r.Header.Add(s3rdma.HeaderToken, "another") }, 403},
		"another x-amz":    {0, func(r *http.Request) { r.Header.Set("X-Amz-Copy-Source", "/b/k") }, 403},
		"the path":         {0, func(r *http.Request) { r.RequestURI = "/bucket/b?versionId=1" }, 403},
		"the query":        {0, func(r *http.Request) { r.RequestURI = "/bucket/a%20b" }, 403},
		"the method":       {0, func(r *http.Request) { r.Method = "GET" }, 403},
		"the host":         {0, func(r *http.Request) { r.Host = "example.org" }, 403},
		"the hash":         {0, func(r *http.Request) { r.Header.Set("X-Amz-Content-Sha256", "x") }, 403},
		"no signature":     {0, func(r *http.Request) { r.Header.Del("Authorization") }, 403},
		"an old request":   {20 * time.Minute, func(*http.Request) {}, 403},
		"of the future":    {-20 * time.Minute, func(*http.Request) {}, 403},
	} {
		r := httptest.NewRequest("PUT", "/bucket/a%20b?versionId=1", nil)
		r.Header.Set(s3rdma.HeaderToken, "token")
		labtest.Check(t, sign(t.Context(), r, test.age))
		test.change(r)
		w := httptest.NewRecorder()
		server.ServeHTTP(w, r)
		if w.Code != test.status || test.status == 403 && !strings.Contains(w.Body.String(), "SignatureDoesNotMatch") {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
}

// sign signs a request as its client does, some time ago.
func sign(ctx context.Context, r *http.Request, age time.Duration) error {
	r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	return signer.SignHTTP(ctx, aws.Credentials(user), r, "UNSIGNED-PAYLOAD", "s3", region, time.Now().Add(-age))
}

// retryOnce makes a second attempt at once.
type retryOnce struct{ aws.NopRetryer }

func (retryOnce) IsErrorRetryable(error) bool                  { return true }
func (retryOnce) MaxAttempts() int                             { return 2 }
func (retryOnce) RetryDelay(int, error) (time.Duration, error) { return 0, nil }

// TestInterrupt interrupts the server during a PUT: it ends when the object is there.
func TestInterrupt(t *testing.T) {
	labtest.Require(t)
	ctx, interrupt := context.WithCancel(labtest.Within(t, time.Minute))
	dir := t.TempDir()
	l := labtest.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	addr := l.Addr().String()
	labtest.Check(t, l.Close())
	served := make(chan error, 1)
	go func() { served <- serve(ctx, user, labtest.RoCE, addr, dir) }()
	labtest.Until(t, "the server", func() bool {
		c, err := net.Dial("tcp", addr)
		return err == nil && c.Close() == nil
	})
	body, rest := io.Pipe()
	r := labtest.Must(http.NewRequestWithContext(t.Context(), "PUT", "http://"+addr+"/bucket/key", body))(t)
	r.ContentLength = 10
	labtest.Check(t, sign(t.Context(), r, 0))
	put := make(chan error, 1)
	go func() {
		resp, err := http.DefaultClient.Do(r)
		if err == nil {
			resp.Body.Close()
		}
		put <- err
	}()
	labtest.Must(rest.Write(make([]byte, 5)))(t)
	labtest.Until(t, "the server to have the request", func() bool {
		files, _ := os.ReadDir(filepath.Join(dir, uploads))
		return len(files) > 0
	})
	interrupt()
	time.AfterFunc(500*time.Millisecond, func() { rest.Write(make([]byte, 5)); rest.Close() })
	if err := <-served; err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "bucket/key")); err != nil || len(got) != 10 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	labtest.Check(t, <-put)
}

// TestFailedUpload completes an upload that fails: its parts stay, for another attempt.
func TestFailedUpload(t *testing.T) {
	dir := t.TempDir()
	root := labtest.Must(os.OpenRoot(dir))(t)
	web := objects(root)
	ask := func(method, query string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		web.ServeHTTP(w, httptest.NewRequest(method, "/bucket/key"+query, strings.NewReader("part")))
		return w
	}
	var begun result
	labtest.Check(t, xml.Unmarshal(ask("POST", "?uploads").Body.Bytes(), &begun))
	id := "?uploadId=" + begun.UploadId
	ask("PUT", id+"&partNumber=1")
	inTheWay := filepath.Join(dir, "bucket/key/x")
	labtest.Check(t, os.MkdirAll(inTheWay, 0o777))
	if w := ask("POST", id); w.Code != http.StatusInternalServerError {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if files := labtest.Must(os.ReadDir(filepath.Join(dir, uploads)))(t); len(files) != 1 {
		t.Errorf("%v remain, and not the parts alone", files)
	}
	labtest.Check(t, os.RemoveAll(filepath.Dir(inTheWay)))
	if w := ask("POST", id); w.Code != http.StatusOK {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "bucket/key")); string(got) != "part" {
		t.Errorf("%q, %v", got, err)
	}
	labtest.Check(t, root.Close())
	if w := ask("DELETE", id); w.Code != http.StatusInternalServerError {
		t.Errorf("%d for an upload that cannot be removed", w.Code)
	}
}

// TestReplacedObject replaces an object between the ranges of a GET, which fails.
func TestReplacedObject(t *testing.T) {
	labtest.Require(t)
	for _, sdk := range []string{"aws", "minio"} {
		r := start(t, true, httptest.NewServer)
		file := filepath.Join(t.TempDir(), "file")
		labtest.Check(t, os.WriteFile(file, make([]byte, 3*partSize), 0o600), r.copy(t, sdk, "put", "key", file))
		var replace sync.Once
		r.hook = func(_ http.ResponseWriter, req *http.Request) bool {
			if req.Method == "GET" && !strings.HasPrefix(req.Header.Get("Range"), "bytes=0-") {
				replace.Do(func() {
					if err := r.copy(t, sdk, "put", "key", file); err != nil {
						t.Error(err)
					}
				})
			}
			return false
		}
		// The file has what it had before.
		labtest.Check(t, os.WriteFile(file+".got", []byte("precious"), 0o600))
		if err := r.copy(t, sdk, "get", "key", file+".got"); err == nil {
			t.Errorf("%s got parts of two objects", sdk)
		}
		if got, err := os.ReadFile(file + ".got"); string(got) != "precious" {
			t.Errorf("%d bytes after a get that failed, %v", len(got), err)
		}
		if files := labtest.Must(os.ReadDir(filepath.Dir(file)))(t); len(files) != 2 {
			t.Errorf("%v are left", files)
		}
	}
}
