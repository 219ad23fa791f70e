package s3rdma

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/verbs"
)

// Handler returns next with the bytes of requests that have a token moved by RDMA, and with the requests
// of [PathRC]. It belongs inside a server's signature check, and outside of all that reads and writes
// bodies. Any handler works as it is:
//
//   - PUT: the request's body reads the client's memory, and its ContentLength is that memory's. Copied
//     with io.Copy, it writes from registered memory. A handler that answers with an error before it has
//     read the body costs no transfer.
//   - GET with 200 or 206: what the handler writes goes to the client's memory. io.Copy and
//     http.ServeContent read into registered memory, and a [BufferWriter] has it for the handler. The
//     header is sent at the end, so Flush does nothing. A handler that writes less than its Content-Length
//     has failed, as has one that writes more than the client's memory without a Content-Length.
//   - All other answers, and all that is declined, go by HTTP.
//
// The answer is sent when the device has acknowledged the last byte, and after the transfer's part of the
// limits is free again.
func (s *Server) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, PathRC) {
			s.ServeHTTP(w, r)
			return
		}
		token := r.Header.Values(HeaderToken)
		if len(token) == 0 || r.Method != http.MethodGet && r.Method != http.MethodPut {
			next.ServeHTTP(w, r) // HEAD has no bytes to move
			return
		}
		p := s.peer(r)
		if r.Method == http.MethodPut && (r.ContentLength != 0 || r.Header.Get("X-Amz-Copy-Source") != "") {
			s.decline(p, ReasonBody, errors.New("the bytes of the object are in the body, or here already"))
			next.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithCancel(r.Context())
		rem, err := s.Remote(p, strings.Join(token, ","))
		defer func() { // also if the handler panics, or has left the body to a goroutine
			cancel()
			rem.Close()
		}()
		if errors.Is(err, ErrToken) {
			xmlError(w, http.StatusBadRequest, "InvalidRDMAToken", err)
			return
		}
		a := answer{w: w, header: w.Header().Clone()}
		if r.Method == http.MethodGet {
			g := &getAnswer{answer: a, ctx: ctx, rem: rem, err: err}
			next.ServeHTTP(g, r)
			g.end()
			return
		}
		var body *Reader
		if err == nil {
			body, err = rem.Reader(ctx)
		}
		if err != nil {
			rem.Close() // its part of the limits
			w.Header().Set(HeaderReply, "501")
			xmlError(w, http.StatusOK, "RDMANotSupported", err)
			return
		}
		put := &putAnswer{answer: a, body: body}
		withBody := *r
		withBody.Body, withBody.ContentLength, withBody.Header = body, rem.Len(), r.Header.Clone()
		withBody.Header.Set("Content-Length", strconv.FormatInt(rem.Len(), 10))
		next.ServeHTTP(put, &withBody)
		put.WriteHeader(http.StatusOK)
	})
}

// BufferWriter is the http.ResponseWriter of a GET, for handlers that fill registered memory themselves:
// they read into Buffer, which has at least one byte, and Advance sends the first n bytes of it. Where
// the bytes go by HTTP, the memory is another one.
type BufferWriter interface {
	http.ResponseWriter
	Buffer() ([]byte, error)
	Advance(n int) error
}

// xmlError sends an error in the form of S3.
func xmlError(w http.ResponseWriter, status int, code string, err error) {
	text, _ := xml.Marshal(struct {
		XMLName       xml.Name `xml:"Error"`
		Code, Message string
	}{Code: code, Message: err.Error()})
	h := w.Header()
	h.Set("Content-Type", "application/xml")
	h.Set("Content-Length", strconv.Itoa(len(xml.Header)+len(text)))
	w.WriteHeader(status)
	io.WriteString(w, xml.Header+string(text))
}

// answer is what a handler answers, until it is sent.
type answer struct {
	w      http.ResponseWriter
	header http.Header // the handler's
	status int         // the handler's; 0 before WriteHeader
	sent   bool
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header {
	if a.sent {
		return a.w.Header()
	}
	return a.header
}

// SetReadDeadline is for [http.ResponseController].
func (a *answer) SetReadDeadline(t time.Time) error {
	return http.NewResponseController(a.w).SetReadDeadline(t)
}

// SetWriteDeadline is for [http.ResponseController]. The answer comes when the bytes are moved.
func (a *answer) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(a.w).SetWriteDeadline(t)
}

// send sends the status and the header, with the reply of this package. The reply is empty if there is none.
func (a *answer) send(reply string, moved int64) {
	h := a.w.Header()
	clear(h)
	maps.Copy(h, a.header)
	h.Del(HeaderReply)
	if reply != "" {
		h.Set(HeaderReply, reply)
	}
	if moved >= 0 {
		h.Set(HeaderBytes, strconv.FormatInt(moved, 10))
	}
	a.sent = true
	a.w.WriteHeader(a.status)
}

// fail sends the error of a transfer in place of the handler's answer.
func (a *answer) fail(err error) {
	a.sent = true
	xmlError(a.w, http.StatusInternalServerError, "RDMATransferFailed", err)
}

// replyOf returns the reply for a status.
func replyOf(status int) string {
	switch status {
	case http.StatusNoContent, http.StatusPartialContent:
		return strconv.Itoa(status)
	}
	return "200"
}

// putAnswer is the answer to a PUT.
type putAnswer struct {
	answer
	body *Reader
	done bool // the answer has no body of the handler's
}

// WriteHeader implements http.ResponseWriter.
func (a *putAnswer) WriteHeader(status int) {
	if a.status != 0 || status < 200 {
		return
	}
	a.status = status
	all, err := a.body.read()
	a.body.Close()
	switch {
	case err != nil:
		a.done = true
		a.fail(err)
	case all && status < 300:
		a.done = true
		if a.header.Del("Content-Length"); status != http.StatusNoContent {
			a.header.Set("Content-Length", "0")
		}
		a.send(replyOf(status), a.body.size)
	default: // refused or, as the handler has ignored the body, declined
		a.send("", -1)
	}
}

// Write implements io.Writer.
func (a *putAnswer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if a.done {
		return len(p), nil
	}
	return a.w.Write(p)
}

// getAnswer is the answer to a GET.
type getAnswer struct {
	answer
	ctx context.Context // of the request
	rem *Remote         // nil if the request is declined
	err error           // why
	to  *Writer         // nil before WriteHeader, and if the bytes go by HTTP
	buf []byte          // of Buffer, if they do
}

// WriteHeader implements http.ResponseWriter.
func (a *getAnswer) WriteHeader(status int) {
	if a.status != 0 || status < 200 {
		return
	}
	a.status = status
	length, err := strconv.ParseInt(a.header.Get("Content-Length"), 10, 64)
	if err != nil {
		length = -1
	}
	bytes := status == http.StatusOK || status == http.StatusPartialContent
	if a.err == nil && bytes {
		a.to, a.err = a.rem.Writer(a.ctx, length)
	}
	if a.to != nil {
		return
	}
	a.rem.Close() // its part of the limits
	if bytes {
		a.send("501", -1)
	} else {
		a.send("", -1)
	}
}

// rescue sends by HTTP what a transfer could not move.
func (a *getAnswer) rescue() bool {
	bytes, err := a.to.rescue()
	if err == nil {
		return false
	}
	a.to = nil
	a.send("501", -1)
	a.w.Write(bytes)
	return true
}

// Write implements io.Writer.
func (a *getAnswer) Write(p []byte) (n int, err error) {
	a.WriteHeader(http.StatusOK)
	if a.to != nil {
		if n, err = a.to.Write(p); err == nil || !a.rescue() {
			return n, err
		}
	}
	m, err := a.w.Write(p[n:])
	return n + m, err
}

// ReadFrom implements io.ReaderFrom.
func (a *getAnswer) ReadFrom(src io.Reader) (n int64, err error) {
	a.WriteHeader(http.StatusOK)
	if a.to != nil {
		if n, err = a.to.ReadFrom(src); err == nil || !a.rescue() {
			return n, err
		}
	}
	m, err := io.Copy(a.w, src)
	return n + m, err
}

// Buffer implements [BufferWriter].
func (a *getAnswer) Buffer() (buf []byte, err error) {
	a.WriteHeader(http.StatusOK)
	if a.to != nil {
		if buf, err = a.to.Buffer(); err == nil || !a.rescue() {
			return buf, err
		}
	}
	if a.buf == nil {
		a.buf = make([]byte, 256<<10)
	}
	return a.buf, nil
}

// Advance implements [BufferWriter].
func (a *getAnswer) Advance(n int) (err error) {
	switch {
	case a.to != nil:
		return a.to.Advance(n)
	case n < 0 || n > len(a.buf):
		return fmt.Errorf("advance %d bytes, Buffer has %d: %w", n, len(a.buf), verbs.ErrRange)
	}
	_, err = a.w.Write(a.buf[:n])
	return err
}

// Flush implements http.Flusher. It does nothing while the bytes go by RDMA.
func (a *getAnswer) Flush() {
	if a.sent {
		http.NewResponseController(a.w).Flush()
	}
}

// end sends the answer.
func (a *getAnswer) end() {
	a.WriteHeader(http.StatusOK)
	if a.to == nil {
		return
	}
	err := a.to.Commit()
	if err != nil && a.rescue() {
		return
	}
	if err != nil {
		err = a.to.fail(err)
	}
	a.rem.Close()
	if err != nil {
		a.fail(err)
		return
	}
	a.header.Set("Content-Length", "0")
	a.send(replyOf(a.status), a.to.Len())
}
