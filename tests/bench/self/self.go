// Package self helps the programs here to report on themselves.
package self

import (
	"bufio"
	"errors"
	"os"
	"strconv"
	"strings"
)

// Resident returns the process's resident memory in KiB.
func Resident() (int, error) {
	f, err := os.Open("/proc/self/smaps_rollup")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), "Rss:"); ok {
			return strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
		}
	}
	return 0, errors.New("smaps_rollup has no Rss")
}
