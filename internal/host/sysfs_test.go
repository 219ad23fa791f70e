//go:build linux && !nordma

package host

import (
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest/starve"
)

// TestListedWithoutFiles lists devices while another goroutine takes the last file of the process now and then: that of
// this process is not said to be the only one.
func TestListedWithoutFiles(t *testing.T) {
	d := &Device{Name: "few"}
	if err := Reserve(d); err != nil {
		t.Fatal(err)
	}
	defer Unregister(d)
	Register(d)
	starve.Files(t, func() error {
		_, err := ListAttrs(strings.TrimSuffix(classDevices, "/"))
		return err
	})
}
