//go:build linux

package s3rdma

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/uverbs"
	"github.com/goverbs/verbs/verbstest"
)

// FuzzRequest gives the handler any headers. Nothing is left when it returns, whatever they are.
func FuzzRequest(f *testing.F) {
	network := verbstest.NewNetwork(verbstest.Options{TraceLimit: -1})
	device, err := soft.New(soft.Options{Network: network, Host: "server", Addrs: []netip.Addr{netip.MustParseAddr(serverAddr)}})
	if err != nil {
		f.Fatal(err)
	}
	defer device.Close()
	dev, err := uverbs.Open(device.Name())
	if err != nil {
		f.Fatal(err)
	}
	defer dev.Close()
	s, err := NewServer(ServerOptions{
		Device: dev, Memory: 1 << 16, Part: 4096, AllowPeer: func(*http.Request, verbs.GID) error { return nil },
		Limits: Limits{Connections: 4, AccountConnections: 4, Wait: 1}, Fabric: Fabric{Timeout: 1, RetryCount: 1},
	})
	if err != nil {
		f.Fatal(err)
	}
	defer s.Close()
	handler := s.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			io.Copy(io.Discard, r.Body)
			return
		}
		w.Header().Set("Content-Length", r.Header.Get("Length"))
		io.CopyN(w, zeros{}, 10_000)
	}))
	connect := httptest.NewRequest("POST", PathConnect, nil)
	own := QPToken{QPNum: 17, GID: netip.MustParseAddr(serverAddr).As16(), Port: 1}.String()
	connect.Header.Set(HeaderToken, own)
	connect.Header.Set(HeaderPSN, "000001")
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, connect)
	id := answer.Header().Get(HeaderSession)
	f.Add("POST", PathConnect, own, "000002", "", "")
	f.Add("POST", PathConnect, own+":x", "0", "", "")
	f.Add("POST", PathDisconnect, "", "", "x", "")
	f.Add("GET", "/o", RCToken{Conn: id, Addr: 4096, Size: 10_000}.String(), "", "", "10000")
	f.Add("PUT", "/o", RCToken{Conn: id, Addr: 4096, Size: 10_000}.String(), "", "", "")
	f.Add("GET", "/o", DCToken{QPNum: 1, Size: 100}.String(), "", "", "-1")
	f.Add("PUT", "/o", "rc:", "", "", "")
	f.Fuzz(func(t *testing.T, method, path, token, psn, session, length string) {
		r := httptest.NewRequest("GET", "/", nil)
		r.Method, r.URL.Path = method, path
		for name, value := range map[string]string{HeaderToken: token, HeaderPSN: psn, HeaderSession: session, "Length": length} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		handler.ServeHTTP(httptest.NewRecorder(), r)
		if st, arena := s.Stats(), s.arena.Stats(); st.Transfers != 0 || st.Memory != 0 || arena.InUse != 0 || st.Connections > 4 {
			t.Errorf("%+v, %+v", st, arena)
		}
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
