//go:build linux

package rsock_test

import (
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

func TestMain(m *testing.M) { labtest.Main(m) }
