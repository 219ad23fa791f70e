package cli

import "testing"

func TestSize(t *testing.T) {
	for text, want := range map[string]Size{
		"0": 0, "1": 1, "4096": 4096, "4096B": 4096, "4K": 4096, "4k": 4096, "4KiB": 4096, "4kib": 4096,
		"3M": 3 << 20, "2MiB": 2 << 20, "1G": 1 << 30, "1GiB": 1 << 30, "-1": -1,
	} {
		var n Size
		if err := n.UnmarshalText([]byte(text)); err != nil || n != want {
			t.Errorf("%q: %d, %v, not %d", text, n, err, want)
		}
	}
	for _, text := range []string{"", "K", "1.5K", "4 K", "4KB", "4Ki", "4T", "K4", "99999999999G", "x"} {
		var n Size
		if err := n.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is %d", text, n)
		}
	}
}

func TestJoinPort(t *testing.T) {
	for host, want := range map[string]string{
		"": ":7", "a": "a:7", "a:8": "a:8", "a:": "a:7", ":8": ":8", "10.9.0.1": "10.9.0.1:7",
		"fd00::1": "[fd00::1]:7", "[fd00::1]": "[fd00::1]:7", "[fd00::1]:8": "[fd00::1]:8", "fe80::1%v0": "[fe80::1%v0]:7",
	} {
		if got := JoinPort(host, 7); got != want {
			t.Errorf("%q: %q, not %q", host, got, want)
		}
	}
}
