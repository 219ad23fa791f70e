package docs

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// deviceRows returns the names in backquotes in each row of the table in devices.md: those of
// rdma's commands, of rdmadev and of verbs' commands.
func deviceRows(t *testing.T) (rows [][3][]string) {
	text := string(labtest.Must(os.ReadFile("../../docs/devices.md"))(t))
	text, _, _ = strings.Cut(text, "\n## Prometheus\n")
	for line := range strings.Lines(text) {
		cells := strings.Split(line, " | ")
		if len(cells) != 3 || strings.HasPrefix(line, "| rdma ") {
			continue
		}
		var row [3][]string
		for i, cell := range cells {
			for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
				row[i] = append(row[i], m[1])
			}
		}
		rows = append(rows, row)
	}
	if len(rows) < 25 {
		t.Fatalf("the table has %d rows", len(rows))
	}
	return rows
}

// TestDevices compares the Go names with the sources.
func TestDevices(t *testing.T) {
	known := exported(t, "rdmadev")
	for _, row := range deviceRows(t) {
		for _, name := range row[1] {
			if !known["rdmadev."+name] {
				t.Errorf("there is no rdmadev.%s", name)
			}
		}
	}
}

// TestDeviceCommands compares the commands with the help of rdma, which answers only on a
// kernel with RDMA, and of verbs.
func TestDeviceCommands(t *testing.T) {
	labtest.Require(t)
	newer := map[string]bool{"monitor": true} // than the iproute2 that is installed
	for _, row := range deviceRows(t) {
		for _, command := range row[0] {
			object := strings.Fields(command)[0]
			if help, _ := exec.Command("rdma", object, "help").CombinedOutput(); !newer[object] && !strings.Contains(string(help), "rdma "+object) {
				t.Errorf("rdma has no %s:\n%s", object, help)
			}
		}
		for _, command := range row[2] {
			args := append(strings.Fields(command)[1:], "--help")
			if out, err := exec.Command(labtest.Built(t, "verbs"), args...).CombinedOutput(); err != nil {
				t.Errorf("%s --help: %v\n%s", command, err, out)
			}
		}
	}
}
