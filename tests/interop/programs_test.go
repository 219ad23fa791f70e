package interop

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

func built(t *testing.T, name string) string {
	t.Helper()
	return labtest.Built(t, name)
}

// compile returns a function that compiles a program in C, once, with these arguments of
// gcc.
func compile(name string, args ...string) func() (path string, err error) {
	return sync.OnceValues(func() (string, error) {
		dir, err := os.MkdirTemp("", name)
		if err != nil {
			return "", err
		}
		path := filepath.Join(dir, name)
		if out, err := exec.Command("gcc", append([]string{"-O1", "-o", path}, args...)...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("gcc: %w\n%s", err, out)
		}
		return path, nil
	})
}

// program is a running program and its output.
type program struct{ *labtest.Program }

// start starts a program.
func start(t *testing.T, name string, args ...string) *program {
	t.Helper()
	labtest.RequireKernel(t)
	return &program{labtest.Start(t, 2*time.Minute, name, args...)}
}

// retryErrMPA connects to a C server that sends immediately, which siw may take for an MPA
// protocol error: then it connects again. C's own clients have the same problem.
func retryErrMPA(t *testing.T, connect func() error) error {
	t.Helper()
	for try := 1; ; try++ {
		err := connect()
		if !errors.Is(err, cm.ErrMPA) || try == 10 {
			return err
		}
		t.Log(err)
	}
}
