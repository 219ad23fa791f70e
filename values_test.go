package verbs_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"reflect"
	"syscall"
	"testing"

	"github.com/goverbs/verbs"
)

// TestSendWRSize bounds the size of requests, of which programs fill many.
func TestSendWRSize(t *testing.T) {
	if size := reflect.TypeFor[verbs.SendWR]().Size(); size > 96 {
		t.Errorf("%d bytes", size)
	}
}

// TestIdentifiers formats GIDs and GUIDs as text and parses them again.
func TestIdentifiers(t *testing.T) {
	type ids struct {
		GID  verbs.GID
		GUID verbs.GUID
	}
	const text = `{"GID":"::ffff:10.9.0.1","GUID":"505400fffe123456"}`
	var v ids
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	if again, err := json.Marshal(v); err != nil || string(again) != text {
		t.Errorf("%s, %v", again, err)
	}
	if v.GID.Addr().String() != "10.9.0.1" {
		t.Errorf("address %v", v.GID.Addr())
	}
	for text, want := range map[string]verbs.GUID{"5054:00ff:fe12:3456": v.GUID, "0": {}, "ffffffffffffffff": {255, 255, 255, 255, 255, 255, 255, 255}} {
		if g, err := verbs.ParseGUID(text); err != nil || g != want {
			t.Errorf("%q: %v, %v", text, g, err)
		}
	}
	for text, want := range map[string]string{"10.9.0.1": "::ffff:10.9.0.1", "fe80::1": "fe80::1"} {
		if g, err := verbs.ParseGID(text); err != nil || g.String() != want {
			t.Errorf("%q: %v, %v", text, g, err)
		}
	}
	for _, text := range []string{"", "x", "10.9.0", "fe80::1%lo", "1::2::3"} {
		if g, err := verbs.ParseGID(text); err == nil {
			t.Errorf("GID %q is %v", text, g)
		}
	}
	for _, text := range []string{"", "x", "-1", "10000000000000000"} {
		if g, err := verbs.ParseGUID(text); err == nil {
			t.Errorf("GUID %q is %v", text, g)
		}
	}
}

// TestSpeed checks the data rate of ports, and the names of widths and speeds.
func TestSpeed(t *testing.T) {
	for want, p := range map[int]verbs.PortAttr{
		2500:   {ActiveWidth: 1, ActiveSpeed: 1},
		100000: {ActiveWidth: 2, ActiveSpeed: 32},
		400000: {ActiveWidth: 2, ActiveSpeed: 128},
		800000: {ActiveWidth: 2, ActiveSpeed: 256},
		0:      {ActiveWidth: 3, ActiveSpeed: 1},
	} {
		if got := p.Speed(); got != want {
			t.Errorf("%+v: %d Mb/s, not %d", p, got, want)
		}
	}
	for want, p := range map[string]verbs.PortAttr{
		"1X SDR":          {ActiveWidth: 1, ActiveSpeed: 1},
		"4X EDR":          {ActiveWidth: 2, ActiveSpeed: 32},
		"2X XDR":          {ActiveWidth: 16, ActiveSpeed: 256},
		"unknown unknown": {ActiveWidth: 3, ActiveSpeed: 512},
	} {
		if got := fmt.Sprint(p.ActiveWidth, " ", p.ActiveSpeed); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}

// TestErrors checks which errors match, as documented.
func TestErrors(t *testing.T) {
	closed := &verbs.Error{Op: "arm", Object: "CQ 1", Device: "rxe0", Err: verbs.ErrClosed, Hint: "do not"}
	if text := closed.Error(); text != "arm CQ 1 on rxe0: use of closed object (do not)" {
		t.Error(text)
	}
	for _, want := range []error{verbs.ErrClosed, net.ErrClosed, fs.ErrClosed} {
		if !errors.Is(closed, want) {
			t.Errorf("%v is not %v", closed, want)
		}
	}
	for errno, unsupported := range map[syscall.Errno]bool{
		syscall.EOPNOTSUPP: true, syscall.ENOSYS: true, syscall.EPROTONOSUPPORT: true, syscall.EINVAL: false,
	} {
		if err := (&verbs.Error{Op: "probe", Err: errno}); errors.Is(err, errors.ErrUnsupported) != unsupported || !errors.Is(err, errno) {
			t.Errorf("%v", err)
		}
	}
	wc := verbs.WC{Status: verbs.WCFlushErr}
	if failed, ok := errors.AsType[*verbs.WCError](wc.Err()); !ok || !errors.Is(failed, verbs.WCFlushErr) {
		t.Errorf("%v", wc.Err())
	}
}

// TestNames prints what programs log.
func TestNames(t *testing.T) {
	for _, test := range []struct {
		v    any
		want string
	}{
		{verbs.Access(0), "0x0"},
		{verbs.AccessAll, "LocalWrite|RemoteWrite|RemoteRead|RemoteAtomic"},
		{verbs.AccessRelaxedOrdering | verbs.AccessHugeTLB | 1<<30, "HugeTLB|RelaxedOrdering|0x40000000"},
		{verbs.SendFence | verbs.SendSignaled, "Fence|Signaled"},
		{verbs.SendFlags(1 << 9), "0x200"},
		{verbs.MTU4096, "4096 (5)"},
		{verbs.PathArmed, "ARMED"},
		{verbs.PathMigState(9), "unknown"},
	} {
		if got := fmt.Sprint(test.v); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}
