//go:build linux

package exchange

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestRecv sends messages that are wrong: too short, or of a buffer that nobody can make.
func TestRecv(t *testing.T) {
	labtest.Require(t)
	message := func(length uint32) []byte {
		return labtest.Must(binary.Append(nil, binary.NativeEndian, Attr{Addr: 1 << 40, Len: length, Key: 1}))(t)
	}
	for name, test := range map[string]struct {
		message []byte
		ok      bool
	}{
		"a megabyte": {message(1 << 20), true},
		"short":      {message(1 << 20)[:15], false},
		"no message": {nil, false},
		"no bytes":   {message(0), false},
		"4 GiB":      {message(1<<32 - 1), false},
	} {
		ctx := labtest.Within(t, time.Minute)
		var inbox *uverbs.MR
		client, server := labtest.Connect(ctx, t, labtest.AddrOf(labtest.RoCE)+":0", cm.Options{}, cm.Options{Setup: PostRecv(&inbox)})
		labtest.Must(client.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: test.message}))(t)
		if a, err := Recv(ctx, server, inbox); (err == nil) != test.ok {
			t.Errorf("%s: %v, %v", name, a, err)
		}
		labtest.Check(t, client.Close(), server.Close())
	}
}
