//go:build linux

package cm_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestDepthOfDevice refuses a number of READs that the device does not take, and names both.
func TestDepthOfDevice(t *testing.T) {
	most := labtest.Must(labtest.Open(t).QueryDevice())(t).MaxQPInitRDAtomic
	if most >= 255 {
		t.Skip("the device takes all")
	}
	l := labtest.Must(cm.Listen(t.Context(), labtest.Addr+":0"))(t)
	defer l.Close()
	d := cm.Dialer{Options: cm.Options{InitiatorDepth: 255}}
	_, err := d.Dial(t.Context(), l.Addr().String())
	if !errors.Is(err, verbs.ErrRange) || !strings.Contains(err.Error(), fmt.Sprintf("InitiatorDepth 255 of at most %d", most)) {
		t.Errorf("%v", err)
	}
}
