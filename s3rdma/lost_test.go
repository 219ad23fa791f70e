//go:build linux

package s3rdma

import (
	"bytes"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestDeviceLost removes the device of a server, and of a client, between requests: these go by HTTP, and Close works.
func TestDeviceLost(t *testing.T) {
	labtest.Require(t)
	for lost, side := range []string{"server", "client"} {
		t.Run(side, func(t *testing.T) {
			var objects sync.Map
			r := newRig(t, ServerOptions{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPut {
					b, err := io.ReadAll(r.Body)
					if err != nil {
						http.Error(w, err.Error(), http.StatusInternalServerError)
						return
					}
					objects.Store(r.URL.Path, b)
					return
				}
				b, _ := objects.Load(r.URL.Path)
				http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b.([]byte)))
			}))
			c := labtest.Must(NewClient(ClientOptions{Device: r.software[1].Name(), QP: uverbs.ConnectOptions{Timeout: 14, RetryCount: 3}}))(t)
			defer c.Close()
			use := func(object string) {
				t.Helper()
				for _, method := range []string{"PUT", "GET"} {
					status, got, err := request(t, &Transport{Client: c}, method, r.http.URL+"/bucket/key", []byte(object))
					if status != 200 || err != nil || method == "GET" && string(got) != object {
						t.Errorf("%s: %d, %q, %v", method, status, got, err)
					}
				}
			}
			use("by RDMA")
			if st := c.Stats(); st.Puts != 1 || st.Gets != 1 {
				t.Fatalf("%+v", st)
			}
			labtest.Check(t, r.software[lost].Close())
			for range 3 {
				use("by HTTP")
			}
			if st := c.Stats(); st.Puts != 1 || st.Gets != 1 || st.Fallbacks[byConnect]+st.Fallbacks[byFailed]+st.Fallbacks[byMemory]+st.Fallbacks[byPause] != 6 {
				t.Errorf("%+v", st)
			}
			if st := r.srv.Stats(); lost == 0 && st.Failed+st.Declined[ReasonFailed] == 0 {
				t.Errorf("the server has counted nothing: %+v", st)
			}
		})
	}
}
