//go:build linux

package labtest

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// Differences of drivers from rxe, by device.

// SentPackets returns the name of a device's counter of the packets that it has sent.
func SentPackets(device string) string {
	switch {
	case device == MLX5:
		return "port_xmit_packets"
	case IsERDMA(device):
		return "tx_packets_cnt"
	}
	return "sent_pkts"
}

// NotReady returns the names of a device's counters of messages without a posted receive. siw does not
// count them: such a message ends its connection. Nor does erdma.
func NotReady(device string) []string {
	switch {
	case device == SIW, IsERDMA(device):
		return nil
	case device == MLX5:
		return []string{"out_of_buffer", "rnr_nak_retry_err"}
	}
	return []string{"rcvd_rnr_err", "send_rnr_err"}
}

// IWARP reports whether a device is one of iWARP, whose QPs the connection manager alone connects.
func IWARP(t testing.TB, device string) bool {
	t.Helper()
	devices := Must(uverbs.Devices())(t)
	i := slices.IndexFunc(devices, func(d uverbs.Device) bool { return d.Name == device })
	if i < 0 {
		t.Fatalf("no device %s", device)
	}
	return devices[i].IWARP()
}

// AddrsOf returns the addresses at which a device listens: that of IPv4, and that of IPv6 if it has IPv6, as the
// kernel's erdma has not.
func AddrsOf(t testing.TB, device string) []string {
	t.Helper()
	all := []string{AddrOf(device), Addr6Of(device)}
	l, err := cm.Listen(t.Context(), "["+all[1]+"]:0")
	if errors.Is(err, syscall.EAFNOSUPPORT) {
		return all[:1]
	}
	Check(t, err, l.Close())
	return all
}

// Rejected reports whether the error of a dial says that the peer has rejected it. On erdma it may be cm.ErrMPA: the
// kernel's driver does not find a rejection whose sender has closed the connection at once (docs/upstream/erdma-reject.md).
func Rejected(t testing.TB, device string, err error) bool {
	t.Helper()
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, cm.ErrMPA) && Driver(t, device) == "erdma"
}

// RejectedWith is like Rejected. A rejection that has been found must have private data that begins with text.
func RejectedWith(t testing.TB, device string, err error, text string) bool {
	t.Helper()
	if r, ok := errors.AsType[*cm.RejectedError](err); ok {
		return strings.HasPrefix(string(r.PrivateData), text)
	}
	return !errors.Is(err, syscall.ECONNREFUSED) && Rejected(t, device, err)
}

// KeepsRequests reports whether QPs of a device take requests before they are connected: a program of erdma knows no
// states of them on iWARP.
func KeepsRequests(t testing.TB, device string) bool {
	t.Helper()
	return Driver(t, device) == "erdma" && IWARP(t, device)
}

// Driver returns the name of a device's driver, for what only that driver does.
func Driver(t testing.TB, device string) string {
	t.Helper()
	return ask(t, device, (*uverbs.Context).Driver)
}

// ask opens a device for one question: the test may look for what is left open before it ends.
func ask[T any](t testing.TB, device string, question func(*uverbs.Context) T) T {
	t.Helper()
	ctx := Must(uverbs.Open(device))(t)
	defer ctx.Close()
	return question(ctx)
}

// Has reports whether a device has a feature.
func Has(t testing.TB, device string, f uverbs.Feature) bool {
	t.Helper()
	err := ask(t, device, func(ctx *uverbs.Context) error { return ctx.Probe(f) })
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		t.Fatal(err)
	}
	return err == nil
}

// Needs skips a test if a device lacks one of the features.
func Needs(t testing.TB, device string, features ...uverbs.Feature) {
	t.Helper()
	for _, f := range features {
		if !Has(t, device, f) {
			t.Skipf("%s lacks %s", device, f)
		}
	}
}

// NeedsSGEs skips a test if requests or receives of a device take fewer SGEs than n.
func NeedsSGEs(t testing.TB, device string, n int) {
	t.Helper()
	if most := ask(t, device, func(ctx *uverbs.Context) int { return Must(ctx.QueryDevice())(t).MaxSGE }); most < n {
		t.Skipf("%s takes %d SGEs, not %d", device, most, n)
	}
}

// NeedsOverflow skips a test of CQs that overflow, if a device does not notice.
func NeedsOverflow(t testing.TB, device string) {
	t.Helper()
	if Driver(t, device) == "erdma" {
		t.Skip("erdma learns only when a program arms a CQ what the program has taken from it")
	}
}

// MaxInline returns the most inline data that a device's requests take, in bytes.
func MaxInline(t testing.TB, device string) int {
	t.Helper()
	return map[string]int{"rxe": 512, "siw": 80, "mlx5": 972, "erdma": 96}[Driver(t, device)]
}

// PinsQueues reports whether a device's queues are memory of the process, which the kernel pins, and
// counts as locked memory.
func PinsQueues(t testing.TB, device string) bool {
	t.Helper()
	driver := Driver(t, device)
	return driver == "mlx5" || driver == "erdma"
}
