package examples

import (
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

func TestEcho(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		_, _, addr := startServer(t, "echo", "serve", labtest.AddrOf(device)+":0")
		for _, text := range []string{"hello", "hello again"} {
			if out, errs, exit := run(t, "echo", addr, text); out != text+"\n" || exit != 0 {
				t.Errorf("exit status %d, output\n%s%s", exit, out, errs)
			}
		}
	})
}
