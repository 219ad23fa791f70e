package rdmadev

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmadev"
)

// TestDevinfo compares verbs info with C's ibv_devinfo -v: each field of C is in the JSON,
// with the same name and value. The only other fields of the JSON are driver, features, an adapter's place in
// the machine, and those that C leaves out when they are zero.
func TestDevinfo(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		theirs := parseDevinfo(t, output(t, "ibv_devinfo", "-v", "-d", device))
		var parsed []any
		d := json.NewDecoder(strings.NewReader(output(t, labtest.Built(t, "verbs"), "info", "--json", device)))
		d.UseNumber() // some values have 64 bits
		if err := d.Decode(&parsed); err != nil || len(parsed) != 1 {
			t.Fatalf("%d devices, %v", len(parsed), err)
		}
		ours := map[string]any{}
		flatten(ours, "", parsed[0])
		for _, c := range theirs {
			v, ok := ours[c.path]
			if strings.HasPrefix(device, "mlx5_") && cPrivate.MatchString(c.path) {
				if ok {
					t.Errorf("%s: verbs says %v, and cannot know", c.path, v)
				}
				continue
			}
			if !ok {
				t.Errorf("%s: C says %s, verbs nothing", c.path, c)
				continue
			}
			delete(ours, c.path)
			if err := c.equals(v); err != nil {
				t.Errorf("%s: C says %s, verbs %v: %v", c.path, c, v, err)
			}
		}
		if len(theirs) < 75 {
			t.Errorf("C shows only %d fields", len(theirs))
		}
		for path, v := range ours {
			if !slices.Contains([]string{"driver", "numa_node", "pci_addr"}, path) && !strings.HasPrefix(path, "features.") && v != json.Number("0") {
				t.Errorf("%s: verbs says %v, C nothing", path, v)
			}
		}
	})
}

// TestDevinfoUnopened compares what package rdmadev reads of a device, without opening it, with
// ibv_devinfo -v.
func TestDevinfoUnopened(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		d := labtest.Must(rdmadev.Find(device))(t)
		guid := func(g verbs.GUID) string { // 4ccc:c6ff:fec5:c002
			return regexp.MustCompile("....").ReplaceAllString(g.String(), ":$0")[1:]
		}
		ours := map[string]any{"node_guid": guid(d.NodeGUID), "sys_image_guid": guid(d.SystemGUID), "phys_port_cnt": len(d.Ports)}
		if d.Firmware != "" { // C asks the driver for a version if sysfs has none
			ours["fw_ver"] = d.Firmware
		}
		for _, p := range d.Ports {
			add := func(name string, v any) { ours[fmt.Sprintf("ports.%d.%s", p.Num, name)] = v }
			add("state", "PORT_"+p.State.String())
			add("link_layer", p.LinkLayer.String())
			add("sm_lid", p.SMLID)
			add("port_lid", p.LID)
			add("port_lmc", p.LMC)
			add("active_width", fmt.Sprintf("%dX", p.Lanes))
			add("active_speed", fmt.Sprintf("%.1f Gbps", float64(p.Rate)/1000/float64(max(p.Lanes, 1))))
			if d.Type == rdmadev.NodeRNIC { // for which C shows no more
				continue
			}
			add("phys_state", p.PhysState.String())
			for _, g := range labtest.Must(p.GIDs())(t) {
				add(fmt.Sprintf("gids.%d", g.Index), fmt.Sprintf("%v, %v", g.GID, g.Type))
			}
		}
		for _, c := range parseDevinfo(t, output(t, "ibv_devinfo", "-v", "-d", device)) {
			if v, ok := ours[c.path]; ok {
				delete(ours, c.path)
				if err := c.equals(v); err != nil {
					t.Errorf("%s: C says %s, rdmadev %v: %v", c.path, c, v, err)
				}
			} else if strings.Contains(c.path, ".gids.") {
				t.Errorf("%s: C says %s, rdmadev nothing", c.path, c)
			}
		}
		for path, v := range ours {
			t.Errorf("%s: rdmadev says %v, C nothing", path, v)
		}
	})
}

// cField is a field as C prints it: a value, the names of flags, or both.
type cField struct {
	path  string
	value string
	flags []string
}

func (c *cField) String() string {
	return strings.TrimSpace(fmt.Sprintf("%q %s", c.value, strings.Join(c.flags, " ")))
}

// Lines of ibv_devinfo -v that are not "name: value" with a name of the JSON.
var (
	// Lines that mean zero.
	cZeros = map[string]string{
		"completion_timestamp_mask not supported": "completion_timestamp_mask",
		"core clock not supported":                "hca_core_clock",
		"tag matching not supported":              "tm_caps.max_num_tags",
	}
	cNames = map[string]string{
		"completion timestamp_mask":       "completion_timestamp_mask",
		"raw packet caps":                 "raw_packet_caps",
		"cq moderation caps":              "cq_moderation_caps",
		"maximum available device memory": "max_dm_size",
		"max_rndv_hdr_size":               "tm_caps.max_rndv_hdr_size",
		"max_num_tags":                    "tm_caps.max_num_tags",
		"max_ops":                         "tm_caps.max_ops",
		"flags":                           "tm_caps.flags",
	}
	// What libmlx5 reads of the driver's private response, which verbs does not.
	cPrivate = regexp.MustCompile(`^(tso_caps|packet_pacing_caps)\.|^rss_caps\.rx_hash_`)
	cGID     = regexp.MustCompile(`^GID\[ *(\d+)\]$`)
)

// parseDevinfo parses the output of ibv_devinfo -v for one device. Lines are
// indented by one tab for the device, two for the members of its sections and
// for "port", three for the fields of the port, and five for the names of flags.
func parseDevinfo(t *testing.T, text string) []*cField {
	t.Helper()
	var all []*cField
	var section, port string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		body := strings.TrimLeft(line, "\t")
		depth := len(line) - len(body)
		name, value, found := strings.Cut(body, ":")
		value = strings.TrimSpace(value)
		c := &cField{value: value}
		switch {
		case body == "":
			continue
		case depth == 5:
			last := all[len(all)-1]
			last.flags = append(last.flags, body)
			continue
		case cZeros[body] != "":
			c.path, c.value = cZeros[body], "0"
		case !found:
			t.Errorf("C prints a line that this test does not know: %q", line)
			continue
		case depth == 0, depth == 1:
			if n := cNames[name]; n != "" {
				name = n
			}
			c.path, section = name, name
		case depth == 2 && name == "port":
			port = "ports." + value + "."
			c.path = port + name
		case depth == 2:
			// The last field is the header of this section and not a field.
			if all[len(all)-1].path == section {
				all = all[:len(all)-1]
			}
			c.path = section + "." + name
		case depth == 3 && cGID.MatchString(name):
			c.path = port + "gids." + cGID.FindStringSubmatch(name)[1]
		case depth == 3:
			c.path = port + name
		default:
			t.Errorf("C prints a line that this test does not know: %q", line)
			continue
		}
		if slices.ContainsFunc(all, func(o *cField) bool { return o.path == c.path }) {
			t.Errorf("C prints %s twice", c.path)
		}
		all = append(all, c)
	}
	return all
}

// flatten adds each value to a map, by its path. Members of lists are identified by their
// index or port.
func flatten(to map[string]any, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for name, m := range v {
			flatten(to, strings.TrimPrefix(path+"."+name, "."), m)
		}
	case []any:
		for _, m := range v {
			switch m := m.(map[string]any); {
			case strings.HasSuffix(path, ".gids"):
				to[fmt.Sprintf("%s.%v", path, m["index"])] = fmt.Sprintf("%v, %v", m["gid"], m["type"])
			default:
				flatten(to, fmt.Sprintf("%s.%v", path, m["port"]), m)
			}
		}
	default:
		to[path] = v
	}
}

// equals compares c with a value of the JSON. Where C prints a name and a number,
// "PORT_ACTIVE (4)", the JSON contains one of them.
func (c *cField) equals(v any) error {
	if c.flags != nil || c.value == "" {
		return c.equalFlags(v)
	}
	if s, ok := v.(string); ok {
		name, _, _ := strings.Cut(c.value, " (")
		if s == c.value || s == name || sameGID(s, c.value) {
			return nil
		}
		return fmt.Errorf("%q is not %q", s, c.value)
	}
	n, err := strconv.ParseUint(fmt.Sprint(v), 10, 64)
	if err != nil {
		return err
	}
	var numbers []uint64
	for word := range strings.FieldsSeq(c.value) {
		word = strings.Trim(word, "()")
		for _, unit := range []string{"kbps", "kHZ", "us", "Bytes"} {
			word = strings.TrimSuffix(word, unit)
		}
		if w, err := strconv.ParseUint(word, 0, 64); err == nil {
			numbers = append(numbers, w)
		}
	}
	if !slices.Contains(numbers, n) {
		return fmt.Errorf("%d is not among %d", n, numbers)
	}
	return nil
}

// equalFlags compares a number with the flags that C names, and with the number if C
// prints it. Of device_cap_flags_ex C names only the upper half.
func (c *cField) equalFlags(v any) error {
	n, err := strconv.ParseUint(fmt.Sprint(v), 10, 64)
	if err != nil {
		return err
	}
	var sum uint64
	for _, name := range c.flags {
		if unknown, ok := strings.CutPrefix(name, "Unknown flags: "); ok {
			bits, err := strconv.ParseUint(unknown, 0, 64)
			if err != nil {
				return err
			}
			sum |= bits
			continue
		}
		bit, ok := cFlags[name]
		if !ok {
			return fmt.Errorf("C names a flag that this test does not know: %q", name)
		}
		sum |= bit
	}
	named := n
	if c.path == "device_cap_flags_ex" {
		named = n >> 32 << 32
	}
	if named != sum {
		return fmt.Errorf("%#x is not %#x", named, sum)
	}
	if c.value != "" && c.value != fmt.Sprintf("0x%08x", n) && c.value != fmt.Sprintf("0x%X", n) {
		return fmt.Errorf("%#x is not %s", n, c.value)
	}
	return nil
}

// sameGID compares an entry of the GID table with that of ibv_devinfo, which prints the GIDs of
// RoCE v1 and InfiniBand without abbreviation, and those of InfiniBand without the type.
func sameGID(ours, theirs string) bool {
	aGID, aType, _ := strings.Cut(ours, ", ")
	bGID, bType, typed := strings.Cut(theirs, ", ")
	if !typed {
		bType = "IB"
	}
	x, err := netip.ParseAddr(aGID)
	y, err2 := netip.ParseAddr(bGID)
	return err == nil && err2 == nil && x == y && aType == bType
}

// TestIbvDevices compares verbs devices with C's ibv_devices, which has fewer columns.
func TestIbvDevices(t *testing.T) {
	labtest.RequireKernel(t)
	theirs := strings.Split(output(t, "ibv_devices"), "\n")
	ours := strings.Split(output(t, labtest.Built(t, "verbs"), "devices"), "\n")
	if len(theirs) > 4 { // behind two lines of titles C sorts by its drivers, verbs by index
		slices.Sort(theirs[2:])
		slices.Sort(ours[2:])
	}
	if len(ours) != len(theirs) || len(theirs) < 4 {
		t.Fatalf("C shows %q, verbs %q", theirs, ours)
	}
	for i := range theirs {
		if !strings.HasPrefix(ours[i], theirs[i]) {
			t.Errorf("C shows %q, verbs %q", theirs[i], ours[i])
		}
	}
}

// TestInfoFeatures checks features that the drivers are known to have or to lack, in
// JSON and in text.
func TestInfoFeatures(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		var parsed []struct{ Features map[string]any }
		labtest.Check(t, json.Unmarshal([]byte(output(t, labtest.Built(t, "verbs"), "info", "--json", device)), &parsed))
		text := output(t, labtest.Built(t, "verbs"), "info", device)
		features := parsed[0].Features
		for name, v := range features {
			shown := fmt.Sprint(v)
			if v == true {
				shown = "yes"
			} else if !strings.HasPrefix(shown, "E") {
				t.Errorf("%s: %v is no errno", name, v)
			}
			if !regexp.MustCompile(`(?m)^\t\t` + regexp.QuoteMeta(name) + `: *\t` + shown + `$`).MatchString(text) {
				t.Errorf("the text does not have %s: %s\n%s", name, shown, text)
			}
		}
		lacking := map[string]string{"siw": "UD UC atomics MW type 2", "erdma": "SRQ UD UC MW type 2"}[labtest.Driver(t, device)]
		if labtest.OlderERDMA(device) {
			lacking += " atomics"
		}
		for _, name := range []string{"RC", "SRQ", "UD", "UC", "atomics", "MW type 2", "XRC domain"} {
			want := any(true)
			if name == "XRC domain" || strings.Contains(lacking, name) {
				want = "EOPNOTSUPP"
			}
			if features[name] != want {
				t.Errorf("%s: %v, want %v", name, features[name], want)
			}
		}
	})
}

// output runs a program, which must succeed, and returns its standard output.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, &stderr)
	}
	return string(out)
}

// cFlags are the names of the flags of all fields. No name has different meanings in
// different fields.
var cFlags = map[string]uint64{
	"RESIZE_MAX_WR":         abi.IB_UVERBS_DEVICE_RESIZE_MAX_WR,
	"BAD_PKEY_CNTR":         abi.IB_UVERBS_DEVICE_BAD_PKEY_CNTR,
	"BAD_QKEY_CNTR":         abi.IB_UVERBS_DEVICE_BAD_QKEY_CNTR,
	"RAW_MULTI":             abi.IB_UVERBS_DEVICE_RAW_MULTI,
	"AUTO_PATH_MIG":         abi.IB_UVERBS_DEVICE_AUTO_PATH_MIG,
	"CHANGE_PHY_PORT":       abi.IB_UVERBS_DEVICE_CHANGE_PHY_PORT,
	"UD_AV_PORT_ENFORCE":    abi.IB_UVERBS_DEVICE_UD_AV_PORT_ENFORCE,
	"CURR_QP_STATE_MOD":     abi.IB_UVERBS_DEVICE_CURR_QP_STATE_MOD,
	"SHUTDOWN_PORT":         abi.IB_UVERBS_DEVICE_SHUTDOWN_PORT,
	"INIT_TYPE":             1 << 9,
	"PORT_ACTIVE_EVENT":     abi.IB_UVERBS_DEVICE_PORT_ACTIVE_EVENT,
	"SYS_IMAGE_GUID":        abi.IB_UVERBS_DEVICE_SYS_IMAGE_GUID,
	"RC_RNR_NAK_GEN":        abi.IB_UVERBS_DEVICE_RC_RNR_NAK_GEN,
	"SRQ_RESIZE":            abi.IB_UVERBS_DEVICE_SRQ_RESIZE,
	"N_NOTIFY_CQ":           abi.IB_UVERBS_DEVICE_N_NOTIFY_CQ,
	"MEM_WINDOW":            abi.IB_UVERBS_DEVICE_MEM_WINDOW,
	"UD_IP_CSUM":            abi.IB_UVERBS_DEVICE_UD_IP_CSUM,
	"XRC":                   abi.IB_UVERBS_DEVICE_XRC,
	"MEM_MGT_EXTENSIONS":    abi.IB_UVERBS_DEVICE_MEM_MGT_EXTENSIONS,
	"MEM_WINDOW_TYPE_2A":    abi.IB_UVERBS_DEVICE_MEM_WINDOW_TYPE_2A,
	"MEM_WINDOW_TYPE_2B":    abi.IB_UVERBS_DEVICE_MEM_WINDOW_TYPE_2B,
	"RC_IP_CSUM":            abi.IB_UVERBS_DEVICE_RC_IP_CSUM,
	"RAW_IP_CSUM":           abi.IB_UVERBS_DEVICE_RAW_IP_CSUM,
	"MANAGED_FLOW_STEERING": abi.IB_UVERBS_DEVICE_MANAGED_FLOW_STEERING,
	"RAW_SCATTER_FCS":       abi.IB_UVERBS_DEVICE_RAW_SCATTER_FCS,
	"PCI_WRITE_END_PADDING": abi.IB_UVERBS_DEVICE_PCI_WRITE_END_PADDING,

	"NO SUPPORT":           0,
	"ODP_SUPPORT":          abi.IB_UVERBS_ODP_SUPPORT,
	"ODP_SUPPORT_IMPLICIT": abi.IB_UVERBS_ODP_SUPPORT_IMPLICIT,
	"SUPPORT_SEND":         abi.IB_UVERBS_ODP_SUPPORT_SEND,
	"SUPPORT_RECV":         abi.IB_UVERBS_ODP_SUPPORT_RECV,
	"SUPPORT_WRITE":        abi.IB_UVERBS_ODP_SUPPORT_WRITE,
	"SUPPORT_READ":         abi.IB_UVERBS_ODP_SUPPORT_READ,
	"SUPPORT_ATOMIC":       abi.IB_UVERBS_ODP_SUPPORT_ATOMIC,
	"SUPPORT_SRQ":          abi.IB_UVERBS_ODP_SUPPORT_SRQ_RECV,
	"SUPPORT_FLUSH":        abi.IB_UVERBS_ODP_SUPPORT_FLUSH,
	"SUPPORT_ATOMIC_WRITE": abi.IB_UVERBS_ODP_SUPPORT_ATOMIC_WRITE,

	"C-VLAN stripping offload": abi.IB_UVERBS_RAW_PACKET_CAP_CVLAN_STRIPPING,
	"Scatter FCS offload":      abi.IB_UVERBS_RAW_PACKET_CAP_SCATTER_FCS,
	"IP csum offload":          abi.IB_UVERBS_RAW_PACKET_CAP_IP_CSUM,
	"Delay drop":               abi.IB_UVERBS_RAW_PACKET_CAP_DELAY_DROP,
	"SUPPORT_RAW_PACKET":       1 << abi.IB_UVERBS_QPT_RAW_PACKET,
	"SUPPORT_UD":               1 << abi.IB_UVERBS_QPT_UD,
}
