package bench

import (
	"path/filepath"
	"strconv"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestLayers sends large messages in one direction through each package that can, and
// compares with C's verbs and with TCP on the same link.
func TestLayers(t *testing.T) {
	stream := labtest.Built(t, "c/stream")
	layers := labtest.Built(t, "layers")
	sides := []side{
		{labtest.Built(t, "transfer"), "7501", nil},
		{layers, "7502", []string{"rconn"}},
		{layers, "7503", []string{"rmsg"}},
		{labtest.Built(t, "stream"), "7504", nil},
		{labtest.Built(t, "c/transfer"), "7505", nil},
		{stream, "7506", []string{"-t"}},
	}
	names := []string{"uverbs, SEND of 64 KiB", "rconn, SEND of 64 KiB", "rmsg, messages of 64 KiB", "rsock, writes of 64 KiB"}
	labtest.Each(t, func(t *testing.T, device string) {
		addr := labtest.AddrOf(device)
		size, n := "65536", strconv.Itoa(scaled(100))
		var openers []opener
		for _, s := range sides {
			s.serve(t, addr)
			args := []string{addr, s.port}
			switch filepath.Base(s.program) {
			case "transfer":
				args = append(args, "rate", "send")
			case "stream":
				args = append(args, "send")
			}
			openers = append(openers, s.opens(t, func(result) {}, append(args, size, n)...))
		}
		rs := turns(openers...)
		for i, name := range names {
			line := comparison{group: "layers", device: device, name: name, unit: "MB/s", better: higher}
			line.ours, line.c = rs[i].megabytes(), rs[len(names)].megabytes()
			line.report(t)
			line.group, line.beside, line.c = "layers, TCP", "TCP", rs[len(names)+1].megabytes()
			line.report(t)
		}
	})
}
