//go:build linux

package guest

import (
	"fmt"
	"testing"
)

func TestRenumber(t *testing.T) {
	for _, names := range [][]string{{"eth0", "eth1"}, {"eth1", "eth0"}, {"eth1"}, {"eth2", "eth0", "eth1"}, {"eth0", "eth2"}, nil} {
		now, to := map[string]int{}, []string(nil)
		for i, name := range names {
			now[name] = i
			to = append(to, fmt.Sprint("eth", i))
		}
		if err := renumber(append([]string(nil), names...), to, func(from, to string) error {
			if _, taken := now[to]; taken {
				t.Errorf("%v: %s is taken", names, to)
			}
			i, ok := now[from]
			if !ok {
				t.Errorf("%v: there is no %s", names, from)
			}
			delete(now, from)
			now[to] = i
			return nil
		}); err != nil {
			t.Error(err)
		}
		for i := range names {
			if n, ok := now[fmt.Sprint("eth", i)]; !ok || n != i {
				t.Errorf("%v became %v", names, now)
			}
		}
	}
}
