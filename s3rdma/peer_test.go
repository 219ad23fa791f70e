package s3rdma

import (
	"net/http"
	"testing"

	"github.com/goverbs/verbs"
)

func TestCheckPeer(t *testing.T) {
	for _, c := range []struct {
		from, gid string
		ok        bool
	}{
		{"10.1.2.3:1000", "::ffff:10.1.2.3", true},
		{"[::ffff:10.1.2.3]:1000", "10.1.2.3", true},
		{"[fd00::1]:1000", "fd00::1", true},
		{"[fe80::1%eth0]:1000", "fe80::1", true},
		{"10.1.2.3:1000", "10.1.2.4", false},
		{"10.1.2.3:1000", "fd00::1", false},
		{"127.0.0.1:1000", "10.1.2.3", false},
		{"10.1.2.3:1000", "::", false},
		{"@", "10.1.2.3", false}, // a Unix socket
		{"", "::", false},
	} {
		gid, err := verbs.ParseGID(c.gid)
		if err != nil {
			t.Fatal(err)
		}
		if err := CheckPeer(&http.Request{RemoteAddr: c.from}, gid); (err == nil) != c.ok {
			t.Errorf("%s from %s: %v", c.gid, c.from, err)
		}
	}
}
