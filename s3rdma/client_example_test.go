package s3rdma_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"

	"github.com/goverbs/verbs/s3rdma"
)

// This example gets an object from a server that wants no signatures, and puts a copy whose bytes stay
// in registered memory.
func ExampleTransport() {
	c, err := s3rdma.NewClient(s3rdma.ClientOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	web := http.Client{Transport: &s3rdma.Transport{Client: c}}
	get, err := http.NewRequestWithContext(s3rdma.WithSize(context.Background(), 64<<20), http.MethodGet, "http://192.0.2.1:9000/bucket/key", nil)
	if err != nil {
		log.Fatal(err)
	}
	resp, err := web.Do(get)
	if err != nil {
		log.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		log.Fatal(resp.Status)
	}
	put, err := http.NewRequest(http.MethodPut, "http://192.0.2.1:9000/bucket/copy", resp.Body) // which closes it
	if err != nil {
		log.Fatal(err)
	}
	put.ContentLength = resp.ContentLength
	resp, err = web.Do(put)
	if err != nil {
		log.Fatal(err)
	}
	io.Copy(os.Stdout, resp.Body)
	resp.Body.Close()
	fmt.Printf("%+v\n", c.Stats())
}
