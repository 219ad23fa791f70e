//go:build linux

package rsock_test

import (
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestExamples runs the examples on each device. They exit if they fail.
func TestExamples(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		for i, r := range []struct {
			name    string
			example func()
			want    string
		}{
			{"Example", Example, "hello\n"},
			{"Dialer_DialContext", ExampleDialer_DialContext, "hello world\n"},
			{"Listen", ExampleListen, "TLS 1.3 by rdma\n"},
			{"ListenConfig_Listen", ExampleListenConfig_Listen, ""},
		} {
			addr = labtest.AddrOf(device) + ":747" + string(rune('1'+i))
			if r.want == "" {
				r.want = "rdma " + addr + "\n"
			}
			if got := labtest.Output(t, r.example); got != r.want {
				t.Errorf("%s prints %q", r.name, got)
			}
		}
	})
}
