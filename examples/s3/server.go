package main

import (
	"cmp"
	"io"
	"io/fs"
	"net/http"
	"os"

	"github.com/goverbs/verbs/s3rdma"
)

// withRDMA returns a server of objects whose bytes go by RDMA: all that it takes. RDMA is inside of the
// signature check, as the token is signed, and outside of what reads and writes bodies.
func withRDMA(rdma *s3rdma.Server, owner account, objects http.Handler) http.Handler {
	all := http.NewServeMux()
	all.Handle("/", owner.check(rdma.Handler(objects)))
	all.Handle(s3rdma.PathRC, rdma) // here queue pairs connect, without a signature
	return all
}

// objects serves the files of a folder as S3 does. To it a body is a body, wherever it comes from.
func objects(root *os.Root) http.Handler {
	f, mux := folder{root}, http.NewServeMux()
	mux.Handle("PUT /{bucket}", handler(f.makeBucket))
	mux.Handle("PUT /{bucket}/{key...}", handler(f.put))
	mux.Handle("GET /{bucket}/{key...}", handler(f.get)) // and HEAD
	mux.Handle("POST /{bucket}/{key...}", handler(f.upload))
	mux.Handle("DELETE /{bucket}/{key...}", handler(f.abort))
	return mux
}

type folder struct{ *os.Root }

func (f folder) makeBucket(_ http.ResponseWriter, r *http.Request) error {
	return f.MkdirAll(r.PathValue("bucket"), 0o777)
}

// get reads a file into registered memory.
func (f folder) get(w http.ResponseWriter, r *http.Request) error {
	file, err := f.Open(object(r))
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err == nil && info.Mode().IsRegular() {
		w.Header().Set("ETag", etag(info))
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(w, r, "", info.ModTime(), file)
		return nil
	}
	return cmp.Or(err, fs.ErrNotExist)
}

// put writes a file from registered memory, if the bytes have come whole.
func (f folder) put(w http.ResponseWriter, r *http.Request) error {
	name := object(r)
	if r.URL.Query().Has("uploadId") {
		name = part(r)
	}
	return f.write(w, name, func(file io.Writer) error {
		sums := checksums(r.Header)
		n, err := io.Copy(sums.beside(file), r.Body)
		if err == nil && (n != r.ContentLength || !sums.match()) {
			err = errDigest
		}
		return err
	})
}
