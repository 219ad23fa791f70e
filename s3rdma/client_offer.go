package s3rdma

import (
	"cmp"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/verbs"
)

// ErrResend is returned by [Offer.Answer] when the server has moved nothing: the request is to be
// sent again without an offer.
var ErrResend = errors.New("s3rdma: the server has moved nothing by RDMA: send the request again with its body")

const checksumPrefix = "X-Amz-Checksum-"

// checksums are the algorithms of S3, by the names that it gives them.
var checksums = map[string]func() hash.Hash{
	"CRC32":     func() hash.Hash { return crc32.NewIEEE() },
	"CRC32C":    func() hash.Hash { return crc32.New(castagnoli) },
	"CRC64NVME": func() hash.Hash { return crc64.New(nvme) },
	"SHA1":      sha1.New,
	"SHA256":    sha256.New,
}

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	nvme       = crc64.MakeTable(0x9a6c9329ac4bc9b5)
)

// checksum returns the value of a checksum's header.
func checksum(algorithm string, data []byte) string {
	h := checksums[algorithm]()
	h.Write(data)
	return base64.StdEncoding.EncodeToString(h.Sum(nil))
}

// Offer is one attempt of a request, whose bytes the server may move by RDMA.
type Offer struct {
	c     *Client
	req   *http.Request
	b     *buffer
	name  string // of the server
	qp    *clientQP
	data  []byte // that the server reads, or may write
	given bool   // data is that of the caller's Body
	size  int    // the most that a GET expects, at most len(data)
	sum   string // a PUT's, with its algorithm's header
	alg   string
}

// Offer offers memory for the body of a request for an object, and sets the request up to be signed
// and sent, once. A PUT's body is read to registered memory, unless it is a [Body], and the headers
// get a token and a checksum; the caller closes the body. Offer returns nil if the request is to go as
// it is; its body is then not read. An error is one of reading the body.
//
// The answer belongs to [Offer.Answer]. Every Offer must be closed.
func (c *Client) Offer(req *http.Request) (*Offer, error) { return c.offer(req, c.opt.Do) }

func (c *Client) offer(req *http.Request, do sender) (made *Offer, err error) {
	if !isObject(req) {
		return nil, nil
	}
	o := &Offer{c: c, req: req, name: req.URL.Scheme + "://" + req.URL.Host}
	n, reason := o.length()
	if n == 0 && reason == "" {
		return nil, nil
	}
	defer func() { // also if do or the body panics
		if made == nil {
			o.Close()
		}
	}()
	switch reason {
	case "":
		reason, err = o.acquire(n, do)
	case bySize:
		err = fmt.Errorf("%d bytes, a transfer has at most %d: use parts or ranges", n, MaxSize)
	}
	if reason != "" {
		c.fallback(req, reason, err)
		return nil, nil
	}
	if req.Method == http.MethodPut {
		err = o.put()
	} else {
		o.get()
	}
	if err != nil {
		c.putQP(o.qp, false) // the server knows nothing of the token
		o.qp = nil
		return nil, err
	}
	req.Header.Set(HeaderToken, o.token())
	req.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.awaited[o] = awaited{o.qp, req.Method + " " + o.name + req.URL.Path, time.Now()}
	return o, nil
}

// acquire takes memory of n bytes and a queue pair, or returns the reason for HTTP.
func (o *Offer) acquire(n int64, do sender) (reason string, err error) {
	if err := o.memory(n); err != nil {
		return byMemory, err
	}
	switch o.qp, err = o.c.takeQP(o.req.Context(), o.name, do); err {
	case nil:
		return "", nil
	case errPaused:
		return byPause, nil
	}
	return byConnect, err
}

// isObject reports whether a request moves an object or a part of one, as opposed to a bucket's or an
// object's properties.
func isObject(req *http.Request) bool {
	put, h := req.Method == http.MethodPut, req.Header
	if !put && req.Method != http.MethodGet {
		return false
	}
	// With the last two net/http makes further attempts of a PUT by itself.
	if h.Get("X-Amz-Copy-Source") != "" || h.Get("Idempotency-Key") != "" || h.Get("X-Idempotency-Key") != "" {
		return false
	}
	q := req.URL.Query()
	for k := range q {
		switch k {
		case "partNumber", "uploadId", "versionId", "x-id":
		default:
			if put || !strings.HasPrefix(k, "response-") {
				return false
			}
		}
	}
	// A PUT to a path of one segment may make a bucket. SDKs that say what they do are believed.
	bucket, key, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
	return bucket != "" && !put || key != "" || q.Get("x-id") == "PutObject" || q.Get("x-id") == "UploadPart"
}

// length returns how many bytes to offer, and sets what a GET expects; or the reason for HTTP, if the
// request is not to go by RDMA. 0 bytes need neither.
func (o *Offer) length() (n int64, reason string) {
	r := o.req
	if r.Method == http.MethodPut {
		n = r.ContentLength
		switch h := r.Header; {
		case n < 0 || n == 0 && r.Body != nil && r.Body != http.NoBody || n > 0 && r.Body == nil:
			return 0, byLength
		case h.Get("X-Amz-Trailer") != "" || strings.Contains(h.Get("Content-Encoding"), "aws-chunked") || strings.HasPrefix(h.Get("X-Amz-Content-Sha256"), "STREAMING-"):
			return 0, byEncoding
		}
		// A server that knows no tokens may store an empty object for a moment. Where the request depends on
		// what is stored, it could not be made again.
		if (r.Header.Get("If-Match") != "" || r.Header.Get("If-None-Match") != "") && !o.c.knows(o.name) {
			return 0, byCondition
		}
		if o.alg, o.sum = givenChecksum(r.Header); checksums[o.alg] == nil {
			if o.alg != "" {
				return 0, byChecksum
			}
			o.alg = o.c.opt.Checksum
		}
	} else if n = rangeLength(r.Header.Get("Range")); n > 0 {
		o.size = int(min(n, MaxSize))
	} else {
		size, ok := r.Context().Value(sizeKey{}).(int64)
		if ok && 0 < size && size < o.c.opt.MinSize {
			return 0, bySmall
		}
		if !ok || size <= 0 {
			size = int64(o.c.opt.GetSize)
		}
		if size >= MaxSize {
			return size, bySize
		}
		// A server may write as much of a longer object as there is memory, and call it a success. The
		// byte more tells.
		n, o.size = size+1, int(size)
	}
	switch {
	case n > MaxSize:
		return n, bySize
	case 0 < n && n < o.c.opt.MinSize:
		return n, bySmall
	}
	return n, ""
}

// rangeLength returns the bytes that a Range header can have as its answer, or 0 if it does not say.
func rangeLength(s string) int64 {
	first, last, ok := strings.Cut(strings.TrimPrefix(s, "bytes="), "-")
	to, err := strconv.ParseInt(last, 10, 62)
	if !ok || err != nil {
		return 0
	}
	if first == "" {
		return to // the last bytes
	}
	from, err := strconv.ParseInt(first, 10, 62)
	if err != nil {
		return 0
	}
	return max(to-from+1, 0)
}

// contentRange returns how many bytes a Content-Range header names, or -1 if it does not say.
func contentRange(s string) int64 {
	r, _, ok := strings.Cut(s, "/")
	r, unit := strings.CutPrefix(r, "bytes ")
	if first, _, two := strings.Cut(r, "-"); !ok || !unit || !two || first == "" {
		return -1
	}
	return cmp.Or(rangeLength(r), -1)
}

// givenChecksum returns the algorithm and the checksum that a request has already, or the algorithm
// that it names.
func givenChecksum(h http.Header) (algorithm, sum string) {
	for k := range h {
		switch name, ok := strings.CutPrefix(k, checksumPrefix); {
		case !ok, name == "Algorithm", name == "Mode", name == "Type":
		default:
			algorithm, sum = strings.ToUpper(name), h.Get(k)
			if checksums[algorithm] != nil {
				return algorithm, sum
			}
		}
	}
	return cmp.Or(algorithm, strings.ToUpper(h.Get("X-Amz-Sdk-Checksum-Algorithm"))), sum
}

// memory takes registered memory of n bytes.
func (o *Offer) memory(n int64) (err error) {
	if y, ok := o.req.Body.(*Body); ok && o.req.Method == http.MethodPut {
		b, rest := y.use()
		if b != nil && b.c == o.c && int64(len(rest)) == n {
			o.b, o.data, o.given = b, rest, true
			return b.register()
		}
		if b != nil {
			b.drop()
		}
	}
	if o.b, err = o.c.buffer(int(n)); err != nil {
		return err
	}
	o.data = o.b.mem.Bytes()[:n]
	return o.b.register()
}

// put reads the body of a PUT and takes it away.
func (o *Offer) put() error {
	r := o.req
	if !o.given {
		ctx, body := r.Context(), r.Body
		stop := context.AfterFunc(ctx, func() { body.Close() }) // which ends a Read that waits, as in net/http
		defer stop()
		if _, err := io.ReadFull(r.Body, o.data); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return fmt.Errorf("s3rdma: read the body of PUT %s, of %d bytes: %w", r.URL.Path, len(o.data), err)
		}
		var more [1]byte
		if n, err := io.ReadFull(r.Body, more[:]); n > 0 || err != io.EOF {
			if n == 0 && ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return fmt.Errorf("s3rdma: read the body of PUT %s: more than its length of %d bytes, or %w", r.URL.Path, len(o.data), err)
		}
	}
	r.Body, r.GetBody, r.ContentLength = http.NoBody, nil, 0
	for _, h := range []string{"Content-Length", "Content-Md5", "Expect"} {
		r.Header.Del(h)
	}
	// Without the checksum a server that does not know the token would replace the object by an empty
	// one: to it this is an empty PUT.
	if o.sum == "" {
		o.sum = checksum(o.alg, o.data)
		r.Header.Set(checksumPrefix+o.alg, o.sum)
	}
	return nil
}

// get prepares a GET. Of a request that has a body which it cannot make again, net/http makes one
// attempt: otherwise it sends a GET a second time when a connection breaks, with the same token, while
// the server may work on the first.
func (o *Offer) get() {
	r := o.req
	r.Body, r.GetBody, r.ContentLength = io.NopCloser(struct{ io.Reader }{strings.NewReader("")}), nil, -1
	if r.Header.Get("Accept-Encoding") == "" {
		r.Header.Set("Accept-Encoding", "identity") // net/http would ask for gzip, and unpack the answer's body
	}
}

func (o *Offer) token() string {
	off := uint64(cap(o.b.mem.Bytes()) - cap(o.data)) // o.data is a slice of the memory
	addr := o.b.mr.Addr() + off
	if o.qp != o.c.dc {
		return RCToken{Conn: o.qp.id, Addr: addr, Size: uint64(len(o.data)), RKey: o.b.mr.RKey()}.String()
	}
	l := &o.c.local
	return DCToken{Addr: addr, Size: uint32(len(o.data)), RKey: o.b.mr.RKey(), LID: l.LID, QPNum: l.QPNum, Global: true, GID: l.GID}.String()
}

// Body returns the bytes of a PUT, for another attempt after [ErrResend]. The caller closes it.
func (o *Offer) Body() *Body {
	o.b.refs.Add(1)
	return &Body{b: o.b, data: o.data}
}

// Close returns the memory. Without a call of Answer it belongs to an attempt with an unknown end.
func (o *Offer) Close() error {
	if o == nil {
		return fmt.Errorf("s3rdma: close offer: %w", verbs.ErrClosed)
	}
	o.fail()
	if o.b != nil {
		o.b.drop()
		o.b = nil
	}
	return nil
}

// fail ends the server's access to the memory, unless the attempt is over.
func (o *Offer) fail() {
	if o.qp == nil {
		return
	}
	o.b.revoke()
	if o.qp != o.c.dc {
		o.c.disconnect(o.qp)
	}
	o.ended()
}

// done ends an attempt that the server has answered, so that it does not use the memory any more.
func (o *Offer) done(declined bool) {
	o.c.putQP(o.qp, declined)
	o.ended()
}

// ended forgets the queue pair, which others may use now.
func (o *Offer) ended() {
	o.c.mu.Lock()
	defer o.c.mu.Unlock()
	delete(o.c.awaited, o)
	o.qp = nil
}

// Answer takes what sending the request has returned. It returns the answer as the caller knows it
// from HTTP, with a [Body] in place of what came by RDMA; or an error. After [ErrResend] the request
// is to be sent again as it was before the offer, a PUT's with the Offer's Body.
func (o *Offer) Answer(resp *http.Response, err error) (*http.Response, error) {
	if o.qp == nil {
		return resp, errors.Join(err, errors.New("s3rdma: an offer has one answer"))
	}
	if err != nil {
		o.fail()
		return nil, err
	}
	put, reply := o.req.Method == http.MethodPut, resp.Header.Get(HeaderReply)
	if reply != "" {
		o.c.learn(o.name)
	}
	ok := resp.StatusCode/100 == 2
	switch {
	case ok && (reply == "200" || reply == "204" || reply == "206"):
		return o.moved(resp, reply)
	case resp.StatusCode == http.StatusInternalServerError:
		o.fail() // a server that has lost the queue pair may say this, too
		return o.decline(resp, byFailed)
	case resp.StatusCode == http.StatusNotImplemented, ok && (put || reply == "501"), resp.StatusCode == http.StatusBadRequest && reply == "":
		if !put {
			o.b.revoke() // packets of a transfer that has failed may still be in the network
		}
		o.done(true)
		reason := byDeclined
		if put && reply == "" && resp.StatusCode != http.StatusNotImplemented {
			o.c.pause(o.name) // a 400 is what a server says of an empty body with another checksum
			reason = byIgnored
		}
		if put || !ok {
			return o.decline(resp, reason)
		}
		o.c.fallback(o.req, reason, nil)
	case ok:
		o.b.revoke() // as above
		o.done(true)
		o.c.pause(o.name)
		o.c.fallback(o.req, byIgnored, nil)
	case resp.StatusCode > 500, resp.StatusCode == http.StatusRequestTimeout:
		o.b.revoke() // a proxy may say this while the server still works
		o.done(true)
	default:
		o.done(false)
	}
	return resp, nil
}

// decline makes the caller send the request again.
func (o *Offer) decline(resp *http.Response, reason string) (*http.Response, error) {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
	resp.Body.Close()
	o.c.fallback(o.req, reason, fmt.Errorf("%s: %s", resp.Status, text))
	return nil, ErrResend
}

// moved returns the answer to a request whose bytes went by RDMA.
func (o *Offer) moved(resp *http.Response, reply string) (*http.Response, error) {
	resp.Body.Close()
	n, text := len(o.data), resp.Header.Get(HeaderBytes)
	put := o.req.Method == http.MethodPut
	if text != "" || !put {
		v, err := strconv.ParseUint(text, 10, 63)
		if err != nil || v > uint64(n) || put && v != uint64(n) {
			o.fail()
			return nil, fmt.Errorf("s3rdma: %s %s: the server has %s %.40q, the memory %d bytes", o.req.Method, o.req.URL.Path, HeaderBytes, text, n)
		}
		n = int(v)
	}
	if want := contentRange(resp.Header.Get("Content-Range")); !put && want >= 0 && int64(n) != want {
		o.fail()
		return nil, fmt.Errorf("s3rdma: %s %s: the server has moved %d bytes of %.60q", o.req.Method, o.req.URL.Path, n, resp.Header.Get("Content-Range"))
	}
	if !put && n > o.size {
		o.done(false)
		o.c.fallback(o.req, bySize, fmt.Errorf("the object has more than the %d bytes of WithSize or GetSize", o.size))
		return nil, ErrResend
	}
	if err := o.check(resp, n); err != nil {
		o.fail()
		return nil, err
	}
	o.done(false)
	o.c.mu.Lock()
	if put {
		o.c.stats.Puts++
		o.c.stats.PutBytes += uint64(n)
	} else {
		o.c.stats.Gets++
		o.c.stats.GetBytes += uint64(n)
	}
	o.c.mu.Unlock()
	if put {
		resp.Body = http.NoBody
		return resp, nil
	}
	if reply == "206" && resp.StatusCode == http.StatusOK {
		resp.StatusCode, resp.Status = http.StatusPartialContent, "206 Partial Content"
	}
	o.b.refs.Add(1)
	resp.Body, resp.ContentLength, resp.TransferEncoding = &Body{b: o.b, data: o.data[:n]}, int64(n), nil
	resp.Header.Set("Content-Length", strconv.Itoa(n))
	return resp, nil
}

// check compares n bytes with the checksums of an answer, if it has one of the whole object. That of a
// PUT is the one that was sent.
func (o *Offer) check(resp *http.Response, n int) error {
	put := o.req.Method == http.MethodPut
	for name := range checksums {
		got := resp.Header.Get(checksumPrefix + name)
		if got == "" || strings.Contains(got, "-") || resp.Header.Get("Content-Range") != "" || put && name != o.alg {
			continue
		}
		want := o.sum
		if !put {
			want = checksum(name, o.data[:n])
		}
		if got != want {
			return fmt.Errorf("s3rdma: %s %s: %d bytes have %s %s, the server says %.100q", o.req.Method, o.req.URL.Path, n, http.CanonicalHeaderKey(checksumPrefix+name), want, got)
		}
	}
	return nil
}
