//go:build !unix

package debian

import (
	"errors"
	"os"
)

func flock(*os.File) error { return errors.ErrUnsupported }
