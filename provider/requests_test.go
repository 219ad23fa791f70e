package provider

import (
	"bytes"
	"errors"
	"testing"

	"github.com/goverbs/verbs"
)

// TestLimits checks what queues take from a device and from the kernel's answer.
func TestLimits(t *testing.T) {
	dev := &Device{Port: verbs.PortAttr{MaxMessage: 1 << 30, ActiveMTU: 3}}
	info := QPInfo{QPNum: 7, Cap: verbs.QPCap{MaxSendSGE: 3, MaxRecvSGE: 4, MaxInline: 5}}
	var r Requests
	r.InitReceives(dev, &QPInit{SingleThreaded: true}, info)
	if r.Op != "post recv" || r.Num != 7 || r.MaxSGE != 4 || r.MaxMessage != 1<<30 || !r.SingleThreaded || r.State != verbs.StateReset || r.MaxOneSGE() != 1<<30 {
		t.Errorf("receives %q of %d: %d SGEs, %d bytes", r.Op, r.Num, r.MaxSGE, r.MaxMessage)
	}
	var s Requests
	s.InitShared(dev, 8, 0)
	if s.Op != OpPostSRQ || s.Num != 8 || s.State != verbs.StateInit || s.SingleThreaded || s.MaxOneSGE() != 0 {
		t.Errorf("shared receives %q of %d in %v", s.Op, s.Num, s.State)
	}
	for typ, most := range map[verbs.QPType]uint64{verbs.RC: 1 << 30, verbs.UC: 1 << 30, verbs.UD: 1024} {
		var q Sends
		q.InitSends(dev, &QPInit{Type: typ, SignalAll: true, SingleThreaded: true}, info)
		if q.Op != "post send" || q.Num != 7 || q.MaxSGE != 3 || q.MaxInline != 5 || q.MaxMessage != most || q.Type != typ || !q.SignalAll || !q.SingleThreaded {
			t.Errorf("sends of %v: %q of %d: %d SGEs, %d bytes, %d inline", typ, q.Op, q.Num, q.MaxSGE, q.MaxMessage, q.MaxInline)
		}
	}
}

// TestCopyInline copies data in one part and in several, up to the limits.
func TestCopyInline(t *testing.T) {
	list := func(parts ...string) *verbs.SendArgs {
		a := &verbs.SendArgs{}
		for _, p := range parts {
			a.InlineList = append(a.InlineList, []byte(p))
		}
		return a
	}
	for name, test := range map[string]struct {
		wr   verbs.SendWR
		no   bool   // the operation takes none
		most uint64 // bytes of a message
		want string
		err  error
	}{
		"fits":          {verbs.SendWR{Inline: []byte("12345678")}, false, 9, "12345678", nil},
		"too long":      {verbs.SendWR{Inline: []byte("123456789")}, false, 9, "", verbs.ErrInlineTooLong},
		"list fits":     {verbs.SendWR{Inline: []byte("12"), Args: list("345", "678")}, false, 8, "12345678", nil},
		"list too long": {verbs.SendWR{Inline: []byte("12"), Args: list("345", "6789")}, false, 9, "", verbs.ErrInlineTooLong},
		"only a list":   {verbs.SendWR{Args: list("345", "", "6")}, false, 9, "3456", nil},
		"long message":  {verbs.SendWR{Inline: []byte("12345678")}, false, 7, "", verbs.ErrMessageTooLong},
		"other op":      {verbs.SendWR{Inline: []byte("1")}, true, 9, "", verbs.ErrInlineOp},
		"with SGE":      {verbs.SendWR{Inline: []byte("1"), SGL: make([]verbs.SGE, 1)}, false, 9, "", verbs.ErrInlineSGL},
	} {
		q, dst := Sends{}, bytes.Repeat([]byte{'x'}, 8)
		q.MaxMessage = test.most
		n, err := q.CopyInline(dst, &test.wr, !test.no)
		if !errors.Is(err, test.err) || n != len(test.want) || err == nil && !bytes.Equal(dst, append([]byte(test.want), "xxxxxxxx"[n:]...)) {
			t.Errorf("%s: %d, %v, %s", name, n, err, dst)
		}
		if has := HasInline(&test.wr); !has {
			t.Errorf("%s: no inline data", name)
		}
	}
	if HasInline(&verbs.SendWR{Args: &verbs.SendArgs{}}) || HasInline(&verbs.SendWR{}) {
		t.Error("inline data of nothing")
	}
}

// TestRefuse checks why receives and sends are refused, and that the error names the request.
func TestRefuse(t *testing.T) {
	sge := func(n uint32) verbs.SGE { return verbs.SGE{Length: n} }
	for name, test := range map[string]struct {
		state verbs.QPState
		size  int
		sgl   []verbs.SGE
		want  error
	}{
		"no queue": {verbs.StateRTS, 0, nil, verbs.ErrNoRecvRoom}, "RESET": {verbs.StateReset, 1, nil, verbs.ErrState},
		"full": {verbs.StateRTS, 1, []verbs.SGE{sge(9), sge(1)}, verbs.ErrQueueFull}, "SGEs": {verbs.StateRTS, 1, make([]verbs.SGE, 3), verbs.ErrTooManySGEs},
		"long": {verbs.StateRTS, 1, []verbs.SGE{sge(9), sge(2)}, verbs.ErrMessageTooLong}, "sum": {verbs.StateRTS, 1, []verbs.SGE{sge(1<<32 - 1), sge(2)}, verbs.ErrMessageTooLong},
	} {
		q := Requests{Op: "op", Num: 3, MaxSGE: 2, MaxMessage: 10}
		q.State = test.state
		err := q.Refuse([]verbs.RecvWR{{}, {ID: 5, SGL: test.sgl}}, 1, test.size)
		refused, ok := errors.AsType[*verbs.PostError](err)
		if !errors.Is(err, test.want) || ok == (test.want == verbs.ErrQueueFull) || ok && (refused.Op != "op" || refused.QPNum != 3 || refused.Index != 1 || refused.ID != 5) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := RefuseOpcode(0); err != verbs.ErrNoOpcode {
		t.Error(err)
	}
	if err := RefuseOpcode(verbs.OpSend); err != verbs.ErrOpcode {
		t.Error(err)
	}
}
