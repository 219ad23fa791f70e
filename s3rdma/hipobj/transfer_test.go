//go:build linux

package hipobj

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

func TestTransfers(t *testing.T) {
	labtest.RequireBoth(t)
	each(t, func(t *testing.T, dev *uverbs.Context) {
		s := newSite(t, dev, Options{})
		c := s.newClient(t, dev, "u")
		for _, n := range []int{1, 2, 4095, 4096, 4097, 65536, 1<<20 + 7} {
			want := labtest.RandomBytes(n, n)
			src, dst := c.memory(t, want), c.memory(t, make([]byte, n+2))
			target := fmt.Sprintf("/b/%d?versionId=x", n)
			r, err := c.Put(t.Context(), target, src)
			if err != nil || r.ETag != fmt.Sprint("etag-", n) || r.Checksum != checksum(want) || !bytes.Equal(s.store.get(target), want) {
				t.Fatalf("PUT of %d bytes: %+v, %v", n, r, err)
			}
			r, err = c.Get(t.Context(), target, 0, Memory{MR: dst.MR, Offset: 1, Size: n})
			if got := dst.MR.Bytes(); err != nil || r.VersionID != "v1" || !bytes.Equal(got[1:1+n], want) || got[0] != 0 || got[n+1] != 0 {
				t.Fatalf("GET of %d bytes: %+v, %v", n, r, err)
			}
			if n > 10 {
				clear(dst.MR.Bytes())
				_, err = c.Get(t.Context(), target, 5, Memory{MR: dst.MR, Size: n - 5})
				if err != nil || !bytes.Equal(dst.MR.Bytes()[:n-5], want[5:]) {
					t.Fatalf("range of %d bytes: %v", n, err)
				}
			}
		}
	})
}

// TestFarRange gets bytes beyond 4 GiB of an object.
func TestFarRange(t *testing.T) {
	each(t, func(t *testing.T, dev *uverbs.Context) {
		s := newSite(t, dev, Options{})
		c := s.newClient(t, dev, "u")
		want := labtest.RandomBytes(1, 100)
		s.store.objects.Store("/b/far", want)
		m := c.memory(t, make([]byte, 50))
		labtest.Must(c.Get(t.Context(), "/b/far", farOffset+50, m))(t)
		if !bytes.Equal(m.MR.Bytes(), want[50:]) {
			t.Errorf("%x, want %x", m.MR.Bytes(), want[50:])
		}
	})
}

// TestManyClients has clients at the limit of sessions: a session's limit is free before its
// answer.
func TestManyClients(t *testing.T) {
	each(t, func(t *testing.T, dev *uverbs.Context) {
		const clients = 4
		s := newSite(t, dev, Options{Limits: Limits{Sessions: clients, Bytes: clients * 10000, AccountSessions: 1, AccountBytes: 10000}})
		var wg sync.WaitGroup
		for i := range clients {
			c := s.newClient(t, dev, fmt.Sprint(i))
			src, dst := c.memory(t, make([]byte, 10000)), c.memory(t, make([]byte, 10000))
			wg.Go(func() {
				for round := range labtest.Rounds(30, 5) {
					copy(src.MR.Bytes(), labtest.RandomBytes(i*1000+round, 10000))
					if _, err := c.Put(t.Context(), fmt.Sprint("/b/", i), src); err != nil {
						t.Error(err)
					}
					if _, err := c.Get(t.Context(), fmt.Sprint("/b/", i), 0, dst); err != nil || !bytes.Equal(src.MR.Bytes(), dst.MR.Bytes()) {
						t.Errorf("client %d, round %d: %v", i, round, err)
					}
				}
			})
		}
		wg.Wait()
	})
}

// TestGIDs has clients on each of the device's GIDs: the server uses one from which there is a path.
func TestGIDs(t *testing.T) {
	each(t, func(t *testing.T, dev *uverbs.Context) {
		s := newSite(t, dev, Options{})
		c := s.newClient(t, dev, "u")
		m := c.memory(t, []byte("bytes"))
		families := map[bool]bool{}
		for _, gid := range labtest.Must(dev.GIDTable())(t) {
			if gid.Type == verbs.GIDRoCEv1 {
				continue // the server cannot know
			}
			c.GID = gid
			if _, err := c.Put(t.Context(), "/b/k", m); err != nil {
				t.Errorf("%v: %v", gid.GID, err)
			}
			families[gid.GID.Addr().Is4()] = true
		}
		if port := labtest.Must(dev.QueryPort(1))(t); port.LinkLayer == verbs.LinkEthernet && len(families) < 2 {
			t.Errorf("the device has GIDs of one family")
		}
	})
}

func TestIWARPIsRefused(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		dev := labtest.OpenDevice(t, device)
		if !dev.Device().IWARP() {
			t.Skip("RoCE")
		}
		if _, err := NewServer(dev, Options{}); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("server: %v", err)
		}
		c := &Client{PD: labtest.Made(dev.AllocPD())(t)}
		mr := labtest.Made(c.PD.AllocMR(1, verbs.AccessLocalWrite, uverbs.MROptions{}))(t)
		if _, err := c.Put(t.Context(), "/b/k", Memory{MR: mr}); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("client: %v", err)
		}
	})
}

// TestClientIsLate sends the WRITE of a PUT before READY, and posts the receive of a GET after it.
func TestClientIsLate(t *testing.T) {
	each(t, func(t *testing.T, dev *uverbs.Context) {
		s := newSite(t, dev, Options{})
		c := s.newClient(t, dev, "u")
		m := c.memory(t, []byte("before READY"))
		x, _ := s.prepared(t, c, Put, "/b/k", m)
		labtest.Check(t, x.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWriteImm, Imm: x.Cookie, RemoteAddr: x.addr, RKey: x.rkey}))
		labtest.Must(x.send(t.Context(), "ready"))(t)
		if got := s.store.get("/b/k"); string(got) != "before READY" {
			t.Errorf("stored %q", got)
		}
	})
}

// TestNotReady sends READY before the client's queue pair is connected: the session takes another
// READY.
func TestNotReady(t *testing.T) {
	each(t, func(t *testing.T, dev *uverbs.Context) {
		s := newSite(t, dev, Options{Connect: fast})
		c := s.newClient(t, dev, "u")
		want := labtest.RandomBytes(1, 10000)
		s.store.objects.Store("/b/k", want)
		m := c.memory(t, make([]byte, len(want)))
		x := labtest.Must(c.begin(Request{Op: Get, Target: "/b/k"}, m))(t)
		defer x.qp.Close()
		h := labtest.Must(x.send(t.Context(), "prepare"))(t)
		x.session = get(h, "session")
		for range 2 {
			if _, err := x.send(t.Context(), "ready"); statusOfAnswer(err) != http.StatusConflict {
				t.Errorf("READY without a queue pair: %v", err)
			}
		}
		labtest.Check(t, x.connect(h))
		labtest.Must(x.send(t.Context(), "ready"))(t)
		labtest.Check(t, x.complete(labtest.Within(t, waitTime)))
		if !bytes.Equal(m.MR.Bytes(), want) {
			t.Error("contents differ")
		}
	})
}

// TestChecksum compares with the check value of CRC-64/NVME.
func TestChecksum(t *testing.T) {
	if got := checksum([]byte("123456789")); got != "CRC64NVME rosUhgp5mIg=" { // 0xae8b14860a799888
		t.Error(got)
	}
}
