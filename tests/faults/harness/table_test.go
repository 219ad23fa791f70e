package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
)

// errorNames are the names of errors in the table, the most specific first.
var errorNames = []struct {
	err  error
	name string
}{
	{verbs.ErrDeviceRemoved, "`verbs.ErrDeviceRemoved`"},
	{rmsg.ErrUnreadable, "`rmsg.ErrUnreadable`"},
	{verbs.WCRemAccessErr, "`WCRemAccessErr`"},
	{verbs.WCRemOpErr, "`WCRemOpErr`"},
	{verbs.WCRetryExcErr, "`WCRetryExcErr`"},
	{verbs.WCRNRRetryExcErr, "`WCRNRRetryExcErr`"},
	{verbs.ErrDisconnected, "`verbs.ErrDisconnected`"},
	{verbs.ErrQueueFull, "`verbs.ErrQueueFull`"},
	{os.ErrDeadlineExceeded, "`os.ErrDeadlineExceeded`"},
	{context.DeadlineExceeded, "`context.DeadlineExceeded`"},
	{verbs.WCFlushErr, "`WCFlushErr`"},
	{io.ErrUnexpectedEOF, "`io.ErrUnexpectedEOF`"},
	{io.EOF, "`io.EOF`"},
}

func errorName(err error) string {
	if _, ok := errors.AsType[*cm.RejectedError](err); ok {
		return "`*cm.RejectedError`"
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return "`" + unix.ErrnoName(errno) + "`"
	}
	for _, n := range errorNames {
		if errors.Is(err, n.err) {
			return n.name
		}
	}
	return fmt.Sprint(err)
}

// wantErrors holds the documented errors, by layer or by device and layer.
type wantErrors map[string][]error

// expect checks that err is one of the documented errors, and returns its name.
func (e *env) expect(w wantErrors, err error) string {
	e.Helper()
	list, ok := w[e.device+" "+e.layer.Name]
	if !ok {
		list = w[e.layer.Name]
	}
	for _, want := range list {
		if errors.Is(err, want) {
			return errorName(err)
		}
	}
	e.Errorf("%v, want one of %v", err, list)
	return errorName(err)
}

// row adds a row to the table: what the program saw, how long that took, and how long until
// it worked again. Zero times are left out.
func (e *env) row(saw string, took, again time.Duration) {
	e.Helper()
	e.rows++
	e.Logf("%s; %s; again %s", saw, formatDuration(took), formatDuration(again))
	if e.Failed() {
		return
	}
	test, _, _ := strings.Cut(e.Name(), "/")
	driver := map[string]string{labtest.RXE: "rxe", labtest.SIW: "siw"}[e.device]
	labtest.AppendTo(e, os.Getenv("FAULTS_TABLE"), fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", os.Getenv("VERBS_LAB"), test, e.title, e.layer.Name, driver, saw, formatDuration(took), formatDuration(again)))
}

// formatDuration formats a duration with about two digits.
func formatDuration(d time.Duration) string {
	switch {
	case d <= 0:
		return ""
	case d < time.Millisecond:
		return "< 1 ms"
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", d.Seconds()*1e3)
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", d.Seconds()*1e3)
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return fmt.Sprintf("%.0f s", d.Seconds())
}
