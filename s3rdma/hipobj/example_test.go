//go:build linux

package hipobj_test

import (
	"context"
	"fmt"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/s3rdma/hipobj"
	"github.com/goverbs/verbs/uverbs"
)

// mapStore is a store in memory.
type mapStore struct{ objects sync.Map }

func (s *mapStore) Get(_ context.Context, r hipobj.Request, b []byte) (hipobj.Object, error) {
	v, ok := s.objects.Load(r.Target)
	if !ok {
		return hipobj.Object{}, fs.ErrNotExist
	}
	if all := v.(string); r.Offset > int64(len(all)) || copy(b, all[r.Offset:]) < len(b) {
		return hipobj.Object{}, &hipobj.Error{Status: http.StatusRequestedRangeNotSatisfiable, Text: "the object is shorter"}
	}
	return hipobj.Object{}, nil
}

func (s *mapStore) Put(_ context.Context, r hipobj.Request, b []byte) (hipobj.Object, error) {
	s.objects.Store(r.Target, string(b))
	return hipobj.Object{}, nil
}

// A server and a client on one device.
func Example() {
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	dev, err := uverbs.Open("rxe0")
	check(err)
	defer dev.Close()
	server, err := hipobj.NewServer(dev, hipobj.Options{})
	check(err)
	defer server.Close()
	endpoint := httptest.NewServer(&hipobj.Handler{
		Server: server,
		Store:  &mapStore{},
		// A real server checks the signature, and what the account may do.
		User: func(r *http.Request, op hipobj.Op, target *url.URL) (string, error) { return "account", nil },
		// The test's HTTP uses 127.0.0.1, and RDMA the device's address.
		AllowPeer: func(*http.Request, verbs.GID) error { return nil },
	})
	defer endpoint.Close()

	pd, err := dev.AllocPD()
	check(err)
	defer pd.Close()
	mr, err := pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, uverbs.MROptions{})
	check(err)
	defer mr.Close()
	client := &hipobj.Client{URL: endpoint.URL, PD: pd}
	n := copy(mr.Bytes(), "the bytes of an object")
	put, err := client.Put(context.Background(), "/bucket/key", hipobj.Memory{MR: mr, Size: n})
	check(err)
	_, err = client.Get(context.Background(), "/bucket/key", 4, hipobj.Memory{MR: mr, Offset: 1024, Size: 5})
	check(err)
	fmt.Printf("%s, %s\n", mr.Bytes()[1024:1029], put.Checksum)
	// Output: bytes, CRC64NVME OfYs4jJIDP0=
}
