//go:build linux

package s3rdma

import (
	"net/http"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestAbandonedConnection makes a client that cannot connect its queue pairs: the server keeps none of its ends.
func TestAbandonedConnection(t *testing.T) {
	r := newRig(t, ServerOptions{}, http.NotFoundHandler())
	c := labtest.Must(NewClient(ClientOptions{Device: r.software[1].Name(), QP: uverbs.ConnectOptions{RetryCount: 9}}))(t)
	for range 5 {
		request(t, &Transport{Client: c}, "PUT", r.http.URL+"/bucket/key", []byte("hello"))
	}
	labtest.Check(t, c.Close()) // waits for requests that disconnect
	if st := r.srv.Stats(); st.Connections != 0 || c.Stats().Fallbacks[byConnect] == 0 {
		t.Errorf("the server has %d connections; %+v", st.Connections, c.Stats())
	}
}
