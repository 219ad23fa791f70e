//go:build linux && !nordma

package provider

import (
	"os"
	"testing"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// BenchmarkCommand runs a command that the kernel takes from the file and ignores: the cost of
// the path to the kernel.
func BenchmarkCommand(b *testing.B) {
	null, err := os.OpenFile("/dev/null", os.O_WRONLY, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	c, err := newCommand(&Device{FD: int(null.Fd())}, false, abi.IB_USER_VERBS_CMD_POST_SEND, mmap.Bytes(&abi.IbUverbsPostSend{}), 4)
	if err != nil {
		b.Fatal(err)
	}
	defer c.close()
	b.ReportAllocs()
	for b.Loop() {
		if err := c.run(); err != nil {
			b.Fatal(err)
		}
	}
}
