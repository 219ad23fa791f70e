package examples

import "testing"

func TestEcho(t *testing.T) {
	each(t, func(t *testing.T, _, host string) {
		_, _, addr := startServer(t, "echo", "serve", host+":0")
		for _, text := range []string{"hello", "hello again"} {
			if out, errs, exit := run(t, "echo", addr, text); out != text+"\n" || exit != 0 {
				t.Errorf("exit status %d, output\n%s%s", exit, out, errs)
			}
		}
	})
}
