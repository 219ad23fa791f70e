//go:build linux

package rdmatest_test

import (
	"fmt"
	"io"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/rsock"
)

// t is the test that an example belongs to. TestExamples sets it.
var t *testing.T

// A test of streams on each device of the machine.
func ExampleEach() {
	rdmatest.Each(t, func(t *testing.T, d rdmatest.Device) {
		rdmatest.CheckLeaks(t)
		l, err := rsock.Listen("rdma", d.ListenAddr())
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			if c, err := l.Accept(); err == nil {
				io.Copy(c, c)
				c.Close()
			}
		}()
		c, err := rsock.Dial("rdma", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "hello"); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 5)
		if _, err := io.ReadFull(c, answer); err != nil || string(answer) != "hello" {
			t.Errorf("%v, %q", err, answer)
		}
	})
}

// A test of requests on a connection of the test with itself.
func ExampleConnect() {
	client, server := rdmatest.Connect(t, rdmatest.Devices(t)[0], cm.Options{}, cm.Options{
		Setup: func(e *cm.Endpoint) error {
			_, err := e.QP.PostRecv(verbs.RecvWR{}) // for a message without data
			return err
		},
	})
	if _, err := client.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSendImm, Imm: 42}); err != nil {
		t.Fatal(err)
	}
	wc, err := server.RecvCQ.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(wc.Opcode, wc.Imm())
}

func TestExamples(tt *testing.T) {
	labtest.Require(tt)
	tt.Run("Each", func(tt *testing.T) {
		t = tt
		ExampleEach()
	})
	tt.Run("Connect", func(tt *testing.T) {
		t = tt
		if got := labtest.Output(tt, ExampleConnect); got != "RECV 42\n" {
			tt.Errorf("prints %q", got)
		}
	})
}
