package rdmadev

import (
	"encoding/json"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmadev"
)

// rdmaJSON runs iproute2's rdma and decodes what it prints.
func rdmaJSON[T any](t *testing.T, args ...string) (list []T) {
	t.Helper()
	out := labtest.Must(exec.Command("rdma", append([]string{"-j", "-d"}, args...)...).Output())(t)
	if err := json.Unmarshal(out, &list); err != nil {
		t.Fatalf("rdma %s prints %s: %v", strings.Join(args, " "), out, err)
	}
	return list
}

// TestDevices compares devices and ports with those of iproute2.
func TestDevices(t *testing.T) {
	labtest.RequireKernel(t)
	type device struct {
		Index      int    `json:"ifindex"`
		Name       string `json:"ifname"`
		Type       string `json:"node_type"`
		Firmware   string `json:"fw"`
		NodeGUID   string `json:"node_guid"`
		SystemGUID string `json:"sys_image_guid"`
		Moderation bool   `json:"adaptive-moderation"`
	}
	guid := func(g verbs.GUID) string {
		s := g.String()
		return s[:4] + ":" + s[4:8] + ":" + s[8:12] + ":" + s[12:]
	}
	var got []device
	devices := labtest.Must(rdmadev.Devices())(t)
	slices.SortFunc(devices, func(a, b rdmadev.Device) int { return a.Index - b.Index }) // as rdma does
	for _, d := range devices {
		if len(d.Errs) > 0 {
			t.Errorf("%s: %v", d.Name, errors.Join(d.Errs...))
		}
		got = append(got, device{d.Index, d.Name, d.Type.String(), d.Firmware, guid(d.NodeGUID), guid(d.SystemGUID), d.AdaptiveModeration})
		if want, ok := map[string]rdmadev.Protocol{labtest.RXE: rdmadev.RoCE, labtest.SIW: rdmadev.IWARP}[d.Name]; ok && d.Protocol != want {
			t.Errorf("%s: protocol %q, want %q", d.Name, d.Protocol, want)
		}
		if found, err := rdmadev.Find(d.Name); err != nil || found.Index != d.Index {
			t.Errorf("%s: found %d, %v", d.Name, found.Index, err)
		}
	}
	want := rdmaJSON[device](t, "dev", "show")
	compareJSON(t, got, want)

	type port struct {
		Index     int    `json:"ifindex"`
		Device    string `json:"ifname"`
		Port      int    `json:"port"`
		State     string `json:"state"`
		PhysState string `json:"physical_state"`
		Interface string `json:"netdev"`
	}
	var ports []port
	for _, d := range devices {
		for _, p := range d.Ports {
			if len(p.Errs) > 0 {
				t.Errorf("%s, port %d: %v", d.Name, p.Num, errors.Join(p.Errs...))
			}
			ports = append(ports, port{d.Index, d.Name, p.Num, p.State.String(), p.PhysState.String(), strings.Join(p.Interfaces, " ")})
		}
	}
	compareJSON(t, ports, rdmaJSON[port](t, "link", "show"))
}

func compareJSON[T any](t *testing.T, got, want []T) {
	t.Helper()
	g, w := labtest.Must(json.Marshal(got))(t), labtest.Must(json.Marshal(want))(t)
	if len(got)+len(want) > 0 && string(g) != string(w) {
		t.Errorf("got\n%s\nrdma prints\n%s", g, w)
	}
}

// TestFind looks for devices that do not exist.
func TestFind(t *testing.T) {
	for _, name := range []string{"", ".", "..", "nosuch", "../net"} {
		if _, err := rdmadev.Find(name); !errors.Is(err, verbs.ErrNoDevice) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
