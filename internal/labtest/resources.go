//go:build linux

package labtest

import (
	"encoding/json"
	"fmt"
	"os/exec"
)

// Resources returns the numbers of objects in the kernel, by device and kind. It uses rdma(8), which
// tolerates additional attributes of newer kernels.
func Resources() (map[string]map[string]int, error) {
	if Soft {
		return map[string]map[string]int{RXE: softDevice.Resources()}, nil
	}
	out, err := exec.Command("rdma", "-j", "resource", "show").Output()
	if err != nil {
		return nil, fmt.Errorf("rdma resource show: %w", err)
	}
	var devices []map[string]any
	if err := json.Unmarshal(out, &devices); err != nil {
		return nil, fmt.Errorf("rdma resource show: %w: %s", err, out)
	}
	all := map[string]map[string]int{}
	for _, d := range devices {
		counts := map[string]int{}
		for kind, n := range d {
			if f, ok := n.(float64); ok && kind != "ifindex" {
				counts[kind] = int(f)
			}
		}
		all[fmt.Sprint(d["ifname"])] = counts
	}
	return all, nil
}
