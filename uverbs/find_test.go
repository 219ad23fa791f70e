package uverbs

import (
	"errors"
	"strings"
	"testing"

	"github.com/goverbs/verbs"
)

// TestFind finds devices by name, GUID, interface and address, also where several match.
func TestFind(t *testing.T) {
	fakeSysfs(t, map[string]string{
		"sys/infiniband_verbs/uverbs0/ibdev":            "mlx0",
		"sys/infiniband/mlx0/node_guid":                 "0000:0000:0000:0001",
		"sys/infiniband/mlx0/ports/1/gid_attrs/ndevs/0": "eth7",
		"sys/infiniband/mlx0/ports/2/gid_attrs/ndevs/0": "eth8",
		"sys/infiniband_verbs/uverbs1/ibdev":            "rxe0",
		"sys/infiniband/rxe0/node_guid":                 "5054:00ff:fe12:3456",
		"sys/infiniband/rxe0/ports/1/gid_attrs/ndevs/0": "lo",
		"sys/infiniband_verbs/uverbs2/ibdev":            "siw0",
		"sys/infiniband/siw0/node_guid":                 "5054:00ff:fe12:3456",
		"sys/infiniband/siw0/ports/1/gid_attrs/ndevs/0": "eth9",
		"sys/infiniband_verbs/uverbs3/ibdev":            "eth9", // the name of an interface of another device
		"sys/infiniband/eth9/node_guid":                 "0000:0000:0000:0004",
		"sys/infiniband/eth9/ports/1/gid_attrs/ndevs/0": "eth10",
		"sys/infiniband_verbs/uverbs4/ibdev":            "siw1",
		"sys/infiniband/siw1/ports/1/gid_attrs/ndevs/0": "eth10",
		"sys/net/bond0/lower_eth7":                      "",
		"sys/net/bond0.5/lower_bond0":                   "",
		"sys/net/br0/lower_eth9":                        "",
		"sys/net/br0/lower_eth10":                       "",
		"dev/uverbs1":                                   "", "dev/uverbs2": "",
	})
	for spec, want := range map[string]string{
		"":                    "rxe0", // the first with a node
		"mlx0":                "mlx0",
		"siw0":                "siw0",
		"0000:0000:0000:0001": "mlx0",
		"0000000000000001":    "mlx0",
		"eth7":                "mlx0",
		"eth8":                "mlx0",
		"bond0":               "mlx0",
		"bond0.5":             "mlx0",
		"eth9":                "eth9", // its name comes first
		"127.0.0.1":           "rxe0",
		"127.0.0.1%lo":        "", // no address: IPv4 has no zones
		"::ffff:127.0.0.1":    "rxe0",
		"lo":                  "rxe0",
		"eth0x":               "",
		"10.99.99.99":         "",
		"fe80::1%lo":          "",
		"../rxe0":             "",
		"[":                   "",
		"*":                   "",
	} {
		d, err := Find(spec)
		switch {
		case want == "" && (!errors.Is(err, verbs.ErrNoDevice) || !strings.Contains(err.Error(), "siw0 (eth9)") || strings.Contains(err.Error(), "\n")):
			t.Errorf("%q: %v", spec, err)
		case want != "" && (err != nil || d.Name != want):
			t.Errorf("%q: %s, not %s: %v", spec, d.Name, want, err)
		}
	}
	for spec, names := range map[string]string{
		"5054:00ff:fe12:3456": "rxe0 (lo), siw0 (eth9)",
		"eth10":               "eth9 (eth10), siw1 (eth10)",
		"br0":                 "siw0 (eth9), eth9 (eth10), siw1 (eth10)",
	} {
		_, err := Find(spec)
		if !errors.Is(err, verbs.ErrAmbiguous) || errors.Is(err, verbs.ErrNoRDMA) || !strings.Contains(err.Error(), names) {
			t.Errorf("%q: %v", spec, err)
		}
		if _, oerr := Open(spec); oerr == nil || oerr.Error() != strings.Replace(err.Error(), "find", "open", 1) {
			t.Errorf("%q: %v when opened, %v when found", spec, oerr, err)
		}
	}
}
