package nic

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// startCM starts a program that connects by rdma_cm, as the server and as the client.
func startCM(t *testing.T, server, client []string) couple {
	t.Helper()
	ports++
	port := strconv.Itoa(ports)
	if server[0] == "udaddy" { // which has a constant port
		port = "7174"
	} else {
		server, client = append(slices.Clip(server), "-p", port), append(slices.Clip(client), "-p", port)
	}
	s := start(t, server...)
	labtest.WaitListening(t, port)
	return couple{s, start(t, client...)}
}

// TestCM connects by rdma_cm. The programs that are told to do so check all data.
func TestCM(t *testing.T) {
	a := newAdapter(t)
	n := func(long, short int) string { return fmt.Sprint(labtest.Rounds(long, short)) }
	for _, r := range []struct {
		program string
		name    string
		args    []string
		long    bool
	}{
		{"rping", "64 KiB", []string{"-V", "-S", "65535", "-C", n(200, 10)}, false},
		{"rping", "23 bytes", []string{"-V", "-S", "23", "-C", n(1000, 10)}, true},
		{"ucmatose", "1 connection", []string{"-C", "10", "-S", "100"}, false},
		{"ucmatose", "50 connections", []string{"-c", "50", "-C", "10", "-S", "20000"}, true},
		{"udaddy", "1 connection", []string{"-C", "10", "-S", "100"}, false},
		{"udaddy", "20 connections", []string{"-c", "20", "-C", "10", "-S", "1024"}, true},
		{"rstream", "verified", []string{"-T", "v", "-I", n(50, 5), "-C", "10", "-S", "65536"}, false},
		{"rstream", "all sizes", []string{"-S", "all"}, true},
		{"rstream", "blocking", []string{"-T", "b", "-T", "v", "-I", "20", "-C", "10", "-S", "5000"}, true},
		{"riostream", "verified", []string{"-T", "v", "-I", n(50, 5), "-C", "10", "-S", "65536"}, true},
	} {
		t.Run(r.program+"/"+r.name, func(t *testing.T) {
			a.needAddress(t)
			if r.program == "udaddy" {
				a.needTypes(t)
			}
			if r.long && testing.Short() {
				t.Skip("takes long")
			}
			server, client := []string{r.program, "-b", address}, []string{r.program, "-s", address}
			if r.program == "rping" {
				server, client = []string{"rping", "-s", "-a", address}, []string{"rping", "-c", "-a", address}
			}
			startCM(t, append(server, r.args...), append(client, r.args...)).wait()
		})
	}
	t.Run("rcopy", func(t *testing.T) {
		a.needAddress(t)
		from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
		data := labtest.RandomBytes(1, labtest.Rounds(64<<20, 1<<20)+12345)
		labtest.Check(t, os.WriteFile(from, data, 0o600))
		c := startCM(t, []string{"rcopy"}, []string{"rcopy", from, address + ":" + to})
		c.client.Wait()
		c.server.Kill() // it serves for ever
		if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%v, copied %d bytes of %d, or others", err, len(got), len(data))
		}
	})
	t.Run("mckey", func(t *testing.T) {
		a.needAddress(t)
		a.needTypes(t)
		const group = "239.1.2.3"
		receiver := start(t, "mckey", "-m", group, "-b", address)
		labtest.Until(t, "mckey to join", func() bool { return joined(group) })
		sender := start(t, "mckey", "-s", "-m", group, "-b", address, "-c", "20") // most of what the last connection sends is lost
		if out := receiver.Wait(); !strings.Contains(out, "data transfers complete") {
			t.Errorf("printed\n%s", out)
		}
		sender.Wait()
	})
}

// joined reports whether a link has joined a group, as rdma_cm makes it do for programs.
func joined(group string) bool {
	b := netip.MustParseAddr(group).As4()
	table, _ := os.ReadFile("/proc/net/igmp")
	return bytes.Contains(table, fmt.Appendf(nil, "\t%02X%02X%02X%02X ", b[3], b[2], b[1], b[0]))
}
