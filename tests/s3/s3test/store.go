// Package s3test has a store of objects for servers that programs of others judge, and names the rows of
// the table of these judges, which command s3doc writes.
package s3test

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/goverbs/verbs/s3rdma"
	"github.com/goverbs/verbs/s3rdma/hipobj"
)

// Store has objects in memory, by their paths. It is an http.Handler, and a store of package hipobj.
// All buckets exist.
type Store struct {
	mu  sync.Mutex
	all map[string][]byte
}

// Object returns the bytes of an object, or nil.
func (s *Store) Object(name string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[name]
}

func (s *Store) set(name string, b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[string][]byte{}
	}
	s.all[name] = b
}

// ServeHTTP serves objects as S3 does.
func (s *Store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch name := r.URL.Path; {
	case path.Dir(name) == "/": // a bucket
	case r.Method == http.MethodPut:
		s.set(name, nil) // there may not be memory for both
		b := make([]byte, r.ContentLength)
		if _, err := io.ReadFull(r.Body, b); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		s.set(name, b)
		w.Header().Set("ETag", fmt.Sprintf(`"%08x"`, crc32.ChecksumIEEE(b)))
	default:
		b := s.Object(name)
		if b == nil {
			http.Error(w, "NoSuchKey", http.StatusNotFound)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
	}
}

// Get implements hipobj.Store.
func (s *Store) Get(_ context.Context, r hipobj.Request, b []byte) (hipobj.Object, error) {
	all := s.Object(r.Target)
	if all == nil {
		return hipobj.Object{}, fs.ErrNotExist
	}
	if r.Offset > int64(len(all)-len(b)) {
		return hipobj.Object{}, &hipobj.Error{Status: http.StatusRequestedRangeNotSatisfiable, Text: "the object is shorter"}
	}
	copy(b, all[r.Offset:])
	return hipobj.Object{}, nil
}

// Put implements hipobj.Store.
func (s *Store) Put(_ context.Context, r hipobj.Request, b []byte) (hipobj.Object, error) {
	s.set(r.Target, bytes.Clone(b))
	return hipobj.Object{}, nil
}

// CuObjTest returns a front for cuobjtest 1.8.0, which has its token in a header of its own, and the size
// and address of its memory in two more.
func CuObjTest(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if text := r.Header.Get("X-CuObj-RDMA-Descr"); text != "" {
			token, err := s3rdma.ParseDCToken(text)
			size, addr := strconv.FormatUint(uint64(token.Size), 10), strconv.FormatUint(token.Addr, 10)
			if err != nil || size != r.Header.Get("X-CuObj-Content-Length") || addr != r.Header.Get("X-CuObj-Remote-Buf-Start") {
				http.Error(w, fmt.Sprintf("headers %v, and a token %+v (%v)", r.Header, token, err), http.StatusForbidden) // which SDKs do not try again
				return
			}
			r.Header.Set(s3rdma.HeaderToken, text)
		}
		next.ServeHTTP(w, r)
	})
}

// Size returns a number of bytes in words: "4097 B", "20 MiB".
func Size(n int) string {
	units := []string{"B", "KiB", "MiB", "GiB"}
	i := 0
	for ; n%1024 == 0 && i < len(units)-1; i++ {
		n /= 1024
	}
	return strings.Join([]string{strconv.Itoa(n), units[i]}, " ")
}
