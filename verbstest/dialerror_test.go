package verbstest_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/verbstest"
)

// TestReplyTakenBack tests the error of a dial whose peer gives up just after its reply: it says
// that the peer has rejected the connection, also if the QP cannot be connected because of that.
func TestReplyTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := verbstest.NewNetwork(verbstest.Options{Filter: func(p *verbstest.Packet) verbstest.Action {
			if p.CM == "REP" {
				return verbstest.Action{Delay: time.Second} // it arrives together with the REJ
			}
			return verbstest.Pass
		}})
		client, server := verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
		l, err := (&cm.ListenConfig{Transport: server}).Listen(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for range 50 {
			accepted := make(chan struct{})
			go func() {
				defer close(accepted)
				req, err := l.Accept(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if e, err := req.Accept(ctx, cm.Options{}); err == nil {
					e.Close()
				}
			}()
			e, err := (&cm.Dialer{Transport: client}).Dial(t.Context(), addr)
			if err == nil {
				e.Close()
			} else if !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "dial 10.0.0.2:7471: connect: ") {
				t.Error(err)
			}
			<-accepted
		}
	})
}

// TestRequestTakenBack accepts a request of a peer that has given up meanwhile.
func TestRequestTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := verbstest.NewNetwork(verbstest.Options{})
		client, server := verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
		l, err := (&cm.ListenConfig{Transport: server}).Listen(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go (&cm.Dialer{Transport: client, ConnectTimeout: time.Second}).Dial(t.Context(), addr)
		req, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		e, err := req.Accept(t.Context(), cm.Options{})
		if err == nil {
			e.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "accept 10.0.0.1:") || !strings.Contains(err.Error(), "the peer has given up") {
			t.Error(err)
		}
	})
}

// TestDialTimeouts dials a host that does not answer, by cm and by rsock: both say for how long
// there was no answer.
func TestDialTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := verbstest.NewNetwork(verbstest.Options{})
		client := verbstest.NewHost(t, network, "10.0.0.1")
		verbstest.NewHost(t, network, "10.0.0.2")
		network.SetFilter(func(p *verbstest.Packet) verbstest.Action { return verbstest.Drop })
		const timeout = 3 * time.Second
		_, byCM := (&cm.Dialer{Transport: client, ConnectTimeout: timeout}).Dial(t.Context(), addr)
		_, byRsock := (&rsock.Dialer{Transport: client, Timeout: timeout}).Dial("rdma", addr)
		for _, err := range []error{byCM, byRsock} {
			if !errors.Is(err, context.DeadlineExceeded) || !strings.HasSuffix(err.Error(), "connect: no answer within 3s: context deadline exceeded") {
				t.Error(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := (&rsock.Dialer{Transport: client}).DialContext(ctx, "rdma", addr); !errors.Is(err, context.DeadlineExceeded) || !strings.HasSuffix(err.Error(), "connect: no answer in time: context deadline exceeded") {
			t.Errorf("the program's deadline: %v", err)
		}
	})
}
