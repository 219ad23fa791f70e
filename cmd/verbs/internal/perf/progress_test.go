//go:build linux

package perf

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestProgress checks that progress is written to a terminal and not to a file.
func TestProgress(t *testing.T) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	defer master.Close()
	n := labtest.Must(unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN))(t)
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer slave.Close()
	s := &side{work: work{Op: "send", Mode: modeBW, Size: 64, Iters: 50, QPs: 2}}
	s.count.Store(25)
	stop := s.showProgress(slave)
	defer time.AfterFunc(testTimeout, func() { slave.Close() }).Stop() // which ends the read
	got, err := bufio.NewReader(master).ReadString('%')
	if want := "send bw of 64 bytes on 2 QPs: 25 of 100 messages, 25%"; !strings.HasSuffix(got, want) || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	stop()
	stop()

	file := labtest.Must(os.Create(t.TempDir() + "/file"))(t)
	defer file.Close()
	s.showProgress(file)()
	if info := labtest.Must(file.Stat())(t); info.Size() != 0 {
		t.Errorf("%d bytes of progress in a file", info.Size())
	}
}
