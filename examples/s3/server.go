package main

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/xml"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/goverbs/verbs"
)

const (
	maxObject = 64 << 20 // bytes
	maxStored = 1 << 30  // bytes of all objects

	tokenHeader    = "X-Amz-Rdma-Token"
	replyHeader    = "X-Amz-Rdma-Reply"             // "200", or "501" if the server declines the token
	bytesHeader    = "X-Amz-Rdma-Bytes-Transferred" // by RDMA
	endpointHeader = "X-Rdma-Endpoint"              // where clients dial; cuObject needs none, as its transport has no connections
	checksumHeader = "X-Amz-Checksum-Crc32c"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum returns the value of checksumHeader.
func checksum(data []byte) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.Checksum(data, castagnoli)))
}

type object struct {
	data     []byte
	checksum string
	time     time.Time
}

// server stores objects in memory. Buckets need not be made.
type server struct {
	rdma *dataPlane // nil without RDMA

	mu      sync.Mutex
	objects map[string]object // by bucket/key
	room    int64             // bytes
}

func newServer(room int64) *server { return &server{objects: map[string]object{}, room: room} }

// failure is an answer that is an error, with S3's code.
type failure struct {
	status     int
	code, text string
}

func (f *failure) Error() string { return f.code + ": " + f.text }

// ServeHTTP answers a request as S3 does.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	err := s.answer(w, r)
	if err == nil {
		return
	}
	f, ok := errors.AsType[*failure](err)
	if !ok {
		log.Printf("%s %s: %v", r.Method, r.URL.Path, err)
		f = &failure{http.StatusInternalServerError, "InternalError", err.Error()}
	}
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(f.status)
	if r.Method != http.MethodHead {
		xml.NewEncoder(w).Encode(struct {
			XMLName       xml.Name `xml:"Error"`
			Code, Message string
		}{Code: f.code, Message: f.text})
	}
}

func (s *server) answer(w http.ResponseWriter, r *http.Request) error {
	if r.URL.Path == "/" && r.Method == http.MethodHead {
		if s.rdma != nil {
			w.Header().Set(endpointHeader, s.rdma.l.Addr().String())
		}
		return nil
	}
	name := strings.TrimPrefix(r.URL.Path, "/")
	if bucket, key, _ := strings.Cut(name, "/"); len(bucket) < 3 || len(bucket) > 63 || key == "" || len(key) > 1024 {
		return &failure{http.StatusBadRequest, "InvalidURI", fmt.Sprintf("/BUCKET/KEY has 3 to 63 and 1 to 1024 bytes, not %d and %d", len(bucket), len(key))}
	}
	var offer *token
	if text := r.Header.Get(tokenHeader); text != "" {
		t, err := parseToken(text)
		if err != nil {
			return &failure{http.StatusBadRequest, "InvalidArgument", err.Error()}
		}
		offer = &t
	}
	switch r.Method {
	case http.MethodPut:
		return s.put(w, r, name, offer)
	case http.MethodGet, http.MethodHead:
		return s.get(w, r, name, offer)
	case http.MethodDelete:
		s.replace(name, nil)
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return &failure{http.StatusMethodNotAllowed, "MethodNotAllowed", r.Method + " is not supported"}
}

func (s *server) put(w http.ResponseWriter, r *http.Request, name string, offer *token) error {
	size := uint64(r.ContentLength) // -1 is too large
	if offer != nil {
		size = offer.size
	}
	if size > maxObject {
		return &failure{http.StatusBadRequest, "EntityTooLarge", fmt.Sprintf("%s: an object has a known size of at most %d bytes", name, maxObject)}
	}
	if !s.reserve(int64(size)) {
		return &failure{http.StatusInsufficientStorage, "InsufficientStorage", fmt.Sprintf("%s: no room for %d bytes", name, size)}
	}
	o := object{data: make([]byte, size), time: time.Now()}
	var err error
	if offer == nil {
		_, err = io.ReadFull(r.Body, o.data)
	} else if err = errDeclined; s.rdma != nil {
		err = s.rdma.transfer(r.Context(), *offer, verbs.OpRDMARead, o.data)
	}
	o.checksum = checksum(o.data)
	switch want := r.Header.Get(checksumHeader); {
	case err == errDeclined: // the bytes have not come: the client shall send them as the body
		w.Header().Set(replyHeader, "501")
		err = &failure{http.StatusNotImplemented, "NotImplemented", name + ": " + err.Error()}
	case err == nil && want != "" && want != o.checksum:
		err = &failure{http.StatusBadRequest, "BadDigest", fmt.Sprintf("%s: CRC-32C of the %d bytes that came is %s, not %.20s", name, size, o.checksum, want)}
	}
	if err != nil {
		s.reserve(-int64(size))
		return err
	}
	s.replace(name, &o)
	if offer != nil {
		w.Header().Set(replyHeader, "200")
		w.Header().Set(bytesHeader, strconv.Itoa(len(o.data)))
	}
	o.describe(w.Header())
	return nil
}

func (s *server) get(w http.ResponseWriter, r *http.Request, name string, offer *token) error {
	s.mu.Lock()
	o, ok := s.objects[name]
	s.mu.Unlock()
	if !ok {
		return &failure{http.StatusNotFound, "NoSuchKey", "no object " + name}
	}
	if offer != nil {
		w.Header().Set(replyHeader, "501")
		if s.rdma != nil && r.Method == http.MethodGet && r.Header.Get("Range") == "" { // ranges come by HTTP
			if uint64(len(o.data)) > offer.size {
				return &failure{http.StatusBadRequest, "EntityTooLarge", fmt.Sprintf("%s has %d bytes, the memory offered %d", name, len(o.data), offer.size)}
			}
			err := s.rdma.transfer(r.Context(), *offer, verbs.OpRDMAWrite, o.data)
			if err == nil {
				o.describe(w.Header())
				w.Header().Set(replyHeader, "200")
				w.Header().Set(bytesHeader, strconv.Itoa(len(o.data)))
				return nil
			}
			if err != errDeclined {
				return err
			}
		}
	}
	o.describe(w.Header())
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", o.time, bytes.NewReader(o.data))
	return nil
}

// describe sets the headers of an object.
func (o *object) describe(h http.Header) {
	h.Set(checksumHeader, o.checksum)
	h.Set("ETag", fmt.Sprintf("%q", o.checksum))
}

// reserve takes n bytes of the room for objects, or returns them if n is negative.
func (s *server) reserve(n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n > s.room {
		return false
	}
	s.room -= n
	return true
}

// replace stores an object, for whose bytes there is a reservation, or deletes it if o is nil.
func (s *server) replace(name string, o *object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room += int64(len(s.objects[name].data))
	delete(s.objects, name)
	if o != nil {
		s.objects[name] = *o
	}
}
