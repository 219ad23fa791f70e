//go:build linux

package labtest

import (
	"errors"
	"slices"
	"testing"

	"github.com/goverbs/verbs/uverbs"
)

// Differences of drivers from rxe, by device.

// SentPackets returns the name of a device's counter of the packets that it has sent.
func SentPackets(device string) string {
	if device == MLX5 {
		return "port_xmit_packets"
	}
	return "sent_pkts"
}

// NotReady returns the names of a device's counters of messages without a posted receive. siw does not
// count them: such a message ends its connection.
func NotReady(device string) []string {
	switch device {
	case SIW:
		return nil
	case MLX5:
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

// Driver returns the name of a device's driver, for what only that driver does.
func Driver(t testing.TB, device string) string {
	t.Helper()
	return OpenDevice(t, device).Driver()
}

// Has reports whether a device has a feature.
func Has(t testing.TB, device string, f uverbs.Feature) bool {
	t.Helper()
	err := OpenDevice(t, device).Probe(f)
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		t.Fatal(err)
	}
	return err == nil
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
