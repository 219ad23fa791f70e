//go:build linux

package s3rdma_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/netip"
	"os"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/s3rdma"
)

var ctx = context.Background()

// This server has a folder's files as objects. One that checks signatures puts Handler inside the check,
// and has Account return whose signature it was.
func ExampleServer_Handler() {
	srv, err := s3rdma.NewServer(s3rdma.ServerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer srv.Close()
	objects, err := os.OpenRoot("/srv/objects")
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(objects.FS())) // reads files into registered memory
	mux.HandleFunc("PUT /{name}", func(w http.ResponseWriter, r *http.Request) {
		f, err := objects.Create(r.PathValue("name"))
		if err == nil {
			_, err = io.Copy(f, r.Body) // writes the file from registered memory
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			objects.Remove(r.PathValue("name"))
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	log.Fatal(http.ListenAndServe(":9000", srv.Handler(mux)))
}

// This is the part of a server without net/http that sends an object.
func ExampleServer_Remote() {
	send := func(srv *s3rdma.Server, token string, object io.Reader, size int64) (reply string, err error) {
		peer := s3rdma.Peer{Account: "alice", AllowGID: func(gid verbs.GID) error {
			if gid.Addr() != netip.MustParseAddr("10.9.0.7") { // where the request has come from
				return fmt.Errorf("GID %v is not the client's", gid)
			}
			return nil
		}}
		remote, err := srv.Remote(peer, token)
		if err != nil {
			return "", err // with ErrDeclined, the object goes by HTTP; ErrToken is a bad request
		}
		defer remote.Close()
		w, err := remote.Writer(ctx, size)
		if err == nil {
			_, err = io.Copy(w, object)
		}
		if err == nil {
			err = w.Commit() // the client has every byte
		}
		return "200", err
	}
	_ = send
}
