//go:build linux

package cli

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// fakeListener counts those that are open.
type fakeListener struct{ open *int }

func (l fakeListener) Close() error { *l.open--; return nil }

// TestFamilies listens on one address, and on all where families are missing or fail.
func TestFamilies(t *testing.T) {
	missing, broken := fmt.Errorf("no address: %w", verbs.ErrNoRoute), errors.New("broken")
	for _, test := range []struct {
		addr string
		errs map[string]error
		want string
		err  error
	}{
		{"10.9.0.1:7", nil, "rdma 10.9.0.1:7", nil},
		{":7", nil, "rdma4 0.0.0.0:7,rdma6 [::]:7", nil},
		{":7", map[string]error{"rdma6": missing}, "rdma4 0.0.0.0:7", nil},
		{":7", map[string]error{"rdma6": syscall.EAFNOSUPPORT}, "rdma4 0.0.0.0:7", nil},
		{":7", map[string]error{"rdma4": missing}, "rdma6 [::]:7", nil},
		{":7", map[string]error{"rdma4": missing, "rdma6": missing}, "", missing},
		{":7", map[string]error{"rdma6": broken}, "rdma4 0.0.0.0:7", broken},
		{":7", map[string]error{"rdma4": broken}, "", broken},
		{"10.9.0.1:7", map[string]error{"rdma": missing}, "", missing},
	} {
		open, listened := 0, []string{}
		all, err := Families(test.addr, func(network, addr string) (fakeListener, error) {
			if err := test.errs[network]; err != nil {
				return fakeListener{}, err
			}
			open++
			listened = append(listened, network+" "+addr)
			return fakeListener{&open}, nil
		})
		if got := strings.Join(listened, ","); got != test.want || !errors.Is(err, test.err) || open != len(all) {
			t.Errorf("%s, %v: %s, %v, %d listeners of which %d are open", test.addr, test.errs, got, err, len(all), open)
		}
	}
}

// TestListen accepts connections of both families, until it is closed.
func TestListen(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		l := labtest.Must(Listen(t.Context(), new(rsock.ListenConfig), ":7495"))(t)
		if l.String() != "0.0.0.0:7495 and [::]:7495" {
			t.Error(l)
		}
		v6 := map[string]string{labtest.RXE: "fd00:9::1", labtest.SIW: "fd00:9:1::1"}[device]
		for _, host := range []string{labtest.AddrOf(device), v6} {
			accepted := make(chan error, 1)
			go func() {
				c, err := l.Accept()
				if err == nil {
					err = c.Close()
				}
				accepted <- err
			}()
			c := labtest.Must(rsock.Dial("rdma", net.JoinHostPort(host, "7495")))(t)
			labtest.Check(t, <-accepted, c.Close())
		}
		labtest.Check(t, l.Close())
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}
