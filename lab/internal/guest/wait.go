//go:build linux

package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// readyLimit bounds the wait for a device, which an emulated machine with other work beside it
// makes slowly.
const readyLimit = 2 * time.Minute

// WaitFor waits for a file of the kernel's, and returns its path.
func WaitFor(pattern string) (string, error) {
	for begun := time.Now(); time.Since(begun) < readyLimit; time.Sleep(20 * time.Millisecond) {
		if files, _ := filepath.Glob(pattern); len(files) > 0 {
			return files[0], nil
		}
	}
	return "", fmt.Errorf("%s does not appear in %v", pattern, readyLimit)
}

// WaitActive waits for the device's nodes and for its port.
func WaitActive(device string) error {
	var state, node string
	for begun := time.Now(); time.Since(begun) < readyLimit; time.Sleep(20 * time.Millisecond) {
		b, _ := os.ReadFile("/sys/class/infiniband/" + device + "/ports/1/state")
		state, node = strings.TrimSpace(string(b)), findInSysfs("infiniband_verbs", "ibdev", device)
		if state == "4: ACTIVE" && node != "" && there("/dev/infiniband/"+node) && there("/dev/infiniband/rdma_cm") {
			return nil
		}
	}
	return fmt.Errorf("%s is not ready: port %q, node %q", device, state, node)
}

// findInSysfs returns the name of the object of a class whose attribute has a value, or "" if there
// is none.
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
