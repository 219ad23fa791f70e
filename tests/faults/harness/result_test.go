package harness

import (
	"errors"
	"fmt"
	"time"
)

// wantErrors holds the documented errors, by layer or by device and layer.
type wantErrors map[string][]error

// expect checks that err is one of the documented errors, and returns its text.
func (e *env) expect(w wantErrors, err error) string {
	e.Helper()
	list, ok := w[e.device+" "+e.layer.Name]
	if !ok {
		list = w[e.layer.Name]
	}
	for _, want := range list {
		if errors.Is(err, want) {
			return fmt.Sprint(err)
		}
	}
	e.Errorf("%v, want one of %v", err, list)
	return fmt.Sprint(err)
}

// result logs what the program saw, how long that took, and how long until it worked again.
func (e *env) result(saw string, took, again time.Duration) {
	e.Helper()
	e.results++
	e.Logf("%s: %s; %v; again after %v", e.title, saw, took, again)
}
