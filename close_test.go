package verbs_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/rconn"
	"github.com/goverbs/verbs/rmsg"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/uverbs"
	"github.com/goverbs/verbs/verbstest"
)

// TestCloseNil tests that Close of a nil pointer, as after a constructor that failed, returns
// an error and does not panic, for all types of the packages that programs use.
func TestCloseNil(t *testing.T) {
	closers := []interface{ Close() error }{
		(*cm.Channel)(nil), (*cm.Endpoint)(nil), (*cm.ID)(nil), (*cm.Listener)(nil), (*cm.Transport)(nil),
		(*mmap.Buffer)(nil),
		(*rconn.Conn)(nil), (*rconn.Listener)(nil), (*rconn.LocalRegion)(nil), (*rconn.Window)(nil),
		(*rmsg.Listener)(nil), (*rmsg.Loop)(nil), (*rmsg.Conn)(nil),
		(*rsock.Conn)(nil), (*rsock.Listener)(nil), (*rsock.PacketConn)(nil),
		(*soft.Device)(nil),
		(*uverbs.AH)(nil), (*uverbs.Arena)(nil), (*uverbs.CompChannel)(nil), (*uverbs.Context)(nil), (*uverbs.CQ)(nil), (*uverbs.MR)(nil),
		(*uverbs.MW)(nil), (*uverbs.PD)(nil), (*uverbs.QP)(nil), (*uverbs.SRQ)(nil),
		(*verbstest.Network)(nil),
	}
	tested := map[string]bool{"*mmap.Region": true} // which drivers close without a check
	for _, c := range closers {
		tested[fmt.Sprintf("%T", c)] = true
		if err := c.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%T: %v", c, err)
		}
	}
	method := regexp.MustCompile(`(?m)^func \(\w+ \*([A-Z]\w*)\) Close\(\) \(?(err )?error`)
	for _, dir := range []string{".", "cm", "mmap", "rconn", "rdmadev", "rdmatest", "rmsg", "rsock", "soft", "uverbs", "verbstest"} {
		files, _ := filepath.Glob(dir + "/*.go")
		for _, name := range files {
			source, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range method.FindAllStringSubmatch(string(source), -1) {
				if typ := "*" + dir + "." + m[1]; !strings.HasSuffix(name, "_test.go") && !tested[typ] {
					t.Errorf("%s is not tested", typ)
				}
			}
		}
	}
}
