//go:build linux

package perf

import (
	"bufio"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestProgress checks that progress is written to a terminal and not to a file.
func TestProgress(t *testing.T) {
	master, slave := labtest.Terminal(t, 80)
	s := &session{work: work{Op: "send", Mode: modeBW, Size: 64, Iters: 50, QPs: 2}}
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
