//go:build linux

package labtest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// driverLog makes rxe and siw log why they end connections (Documentation/admin-guide/dynamic-debug-howto.rst).
const driverLog = `
module siw func siw_init_terminate +p
module siw func siw_handle_terminate +p
module siw func siw_cm_llp_error_report +p
module siw func siw_check_mem +p
module siw format "rx error" +p
module siw format "sink stag" +p
module siw format "processing failed" +p
module rdma_rxe format "retransmit timer" +p
module rdma_rxe format "unexpected" +p
module rdma_rxe format "rror" +p
module rdma_rxe format "Failed" +p
`

// DriverLog prints, if the test fails, what the kernel has logged meanwhile, with the reasons why rxe and
// siw have ended connections. It does nothing outside of the lab's machines.
func DriverLog(t testing.TB) {
	t.Helper()
	if !Lab || onHost {
		return
	}
	begin := fmt.Sprintf("labtest: %s, process %d", t.Name(), os.Getpid())
	Check(t, os.WriteFile("/sys/kernel/debug/dynamic_debug/control", []byte(driverLog), 0))
	Check(t, os.WriteFile("/dev/kmsg", []byte(begin), 0))
	t.Cleanup(func() {
		if t.Failed() {
			log := KernelLog(t)
			if _, since, ok := strings.Cut(log, begin); ok { // or it has been overwritten
				log = since
			}
			t.Logf("the end of the kernel's log:\n%s", log[max(0, len(log)-20_000):])
		}
	})
}

// KernelLog returns the latest part of the kernel's log.
func KernelLog(t testing.TB) string {
	t.Helper()
	buf := make([]byte, 1<<20)
	return string(buf[:Must(unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, buf))(t)])
}
