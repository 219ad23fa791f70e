//go:build linux

package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// readyLimit bounds the wait for a device: a busy emulated machine is slow.
const readyLimit = 2 * time.Minute

// await waits until ready returns true, for at most readyLimit. It reports whether it did.
func await(ready func() bool) bool {
	for begun := time.Now(); time.Since(begun) < readyLimit; time.Sleep(20 * time.Millisecond) {
		if ready() {
			return true
		}
	}
	return false
}

// WaitFor waits for a file of the kernel, and returns its path.
func WaitFor(pattern string) (string, error) {
	var files []string
	if !await(func() bool { files, _ = filepath.Glob(pattern); return len(files) > 0 }) {
		return "", fmt.Errorf("%s does not appear in %v", pattern, readyLimit)
	}
	return files[0], nil
}

// WaitActive waits for the device's nodes and for its port.
func WaitActive(device string) error {
	var state, node string
	if !await(func() bool {
		b, _ := os.ReadFile("/sys/class/infiniband/" + device + "/ports/1/state")
		state, node = strings.TrimSpace(string(b)), findInSysfs("infiniband_verbs", "ibdev", device)
		return state == "4: ACTIVE" && node != "" && there("/dev/infiniband/"+node) && there("/dev/infiniband/rdma_cm")
	}) {
		return fmt.Errorf("%s is not ready: port %q, node %q", device, state, node)
	}
	return nil
}

// findInSysfs returns the name of an object of a class by the value of an attribute, or "".
func findInSysfs(class, attr, value string) string {
	files, _ := filepath.Glob("/sys/class/" + class + "/*/" + attr)
	for _, f := range files {
		if b, _ := os.ReadFile(f); strings.TrimSpace(string(b)) == value {
			return filepath.Base(filepath.Dir(f))
		}
	}
	return ""
}

func there(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
