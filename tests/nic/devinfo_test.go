package nic

import (
	"bufio"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestDevinfo checks what ibv_devinfo -v shows.
func TestDevinfo(t *testing.T) {
	a := newAdapter(t)
	t.Run("ibv_devinfo", func(t *testing.T) {
		c := start(t, "ibv_devinfo", "-v", "-d", device)
		got := parseDevinfo(c.Wait())
		want := map[string]string{ // patterns
			"hca_id":                   device,
			"transport":                `InfiniBand \(0\)`,
			"fw_ver":                   `\d+\.\d+\.\d+`,
			"node_guid":                `0015:b3ff:fe09:0001`,
			"sys_image_guid":           `0015:b3ff:fe09:0001`,
			"vendor_id":                `0x02c9`,
			"vendor_part_id":           `412[34]`,
			"phys_port_cnt":            `1`,
			"max_mr_size":              `0xffffffffffffffff`,
			"page_size_cap":            `0xf.*000`,
			"atomic_cap":               `ATOMIC_HCA \(1\)`,
			"state":                    `PORT_ACTIVE \(4\)`,
			"phys_state":               `LINK_UP \(5\)`,
			"link_layer":               "Ethernet",
			"max_mtu":                  `4096 \(5\)`,
			"active_mtu":               `1024 \(3\)`,
			"port_lid":                 `0`,
			"active_width":             `4X \(2\)`,
			"completiontimestamp_mask": `0x[0-9a-f]*f`,
			"hca_core_clock":           `\d+kHZ`,
		}
		if a.infiniBand() {
			want["link_layer"], want["active_mtu"], want["port_lid"] = "InfiniBand", `4096 \(5\)`, `[1-9]\d*`
		} else {
			want["GID["+strconv.Itoa(a.gid)+"]"] = `::ffff:10\.9\.2\.1, RoCE v2`
		}
		limits := map[string]int{
			"max_qp": 1 << 16, "max_qp_wr": 1 << 12, "max_sge": 16, "max_sge_rd": 16, "max_cq": 1 << 16, "max_cqe": 1 << 20, "max_mr": 1 << 18,
			"max_pd": 1 << 14, "max_qp_rd_atom": 16, "max_qp_init_rd_atom": 16, "max_srq": 1 << 14, "max_srq_wr": 1 << 14, "max_srq_sge": 16,
			"max_mcast_grp": 1 << 12, "max_mcast_qp_attach": 32, "max_pkeys": 1, "gid_tbl_len": 1, "pkey_tbl_len": 1, "num_comp_vectors": 2,
		}
		if a.erdma {
			want = map[string]string{
				"hca_id": device, "transport": `iWARP \(1\)`, "fw_ver": `\d+\.\d+\.\d+`, "node_guid": `0015:b3ff:fe09:0001`, "sys_image_guid": `0015:b3ff:fe09:0001`,
				"vendor_id": `0x1ded`, "vendor_part_id": `4223`, "phys_port_cnt": `1`, "max_mr_size": `0x100000000`, "page_size_cap": `0x7ffff000`,
				"atomic_cap": `ATOMIC_GLOB \(2\)`, "state": `PORT_ACTIVE \(4\)`, "link_layer": "Ethernet", "active_mtu": `1024 \(3\)`,
			}
			limits = map[string]int{
				"max_qp": 4000, "max_qp_wr": 1 << 13, "max_sge": 1, "max_sge_rd": 1, "max_cq": 8000, "max_cqe": 1 << 16, "max_mr": 1 << 13,
				"max_pd": 1 << 17, "max_qp_rd_atom": 128, "max_qp_init_rd_atom": 128, "num_comp_vectors": 2,
			}
			if labtest.OlderERDMA(device) {
				want["atomic_cap"] = `ATOMIC_NONE \(0\)`
			}
			if !a.iwarp {
				want["transport"] = `InfiniBand \(0\)`
			}
		}
		for name, pattern := range want {
			if !regexp.MustCompile("^" + pattern + "$").MatchString(got[name]) {
				t.Errorf("%s is %q, not %s", name, got[name], pattern)
			}
		}
		for name, least := range limits {
			if n, err := strconv.Atoi(got[name]); err != nil || n < least {
				t.Errorf("%s is %q, not at least %d", name, got[name], least)
			}
		}
		if t.Failed() {
			t.Logf("%s", &c.Out)
		}
	})
}

// parseDevinfo returns the values of ibv_devinfo's lines by their names, without spaces.
func parseDevinfo(out string) map[string]string {
	values := map[string]string{}
	for s := bufio.NewScanner(strings.NewReader(out)); s.Scan(); {
		name, value, ok := strings.Cut(s.Text(), ":")
		name = strings.ReplaceAll(strings.TrimSpace(name), " ", "")
		if _, seen := values[name]; ok && !seen {
			values[name] = strings.TrimSpace(value)
		}
	}
	return values
}
