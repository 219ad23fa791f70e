package docs

import (
	"fmt"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// kernels are the kernels that the tables cover.
var kernels = []string{"6.1", "6.12", "7.3"}

// answers are the answers of a driver, oldest first: each is valid from a kernel on.
type answers []struct{ from, answer string }

var errnos = map[string]syscall.Errno{
	"EINVAL":          unix.EINVAL,
	"ENOSYS":          unix.ENOSYS,
	"EOPNOTSUPP":      unix.EOPNOTSUPP,
	"EPROTONOSUPPORT": unix.EPROTONOSUPPORT,
}

// parseAnswers parses "EINVAL, from 6.12 EOPNOTSUPP, from 7.3 yes".
func parseAnswers(text string) (a answers, err error) {
	for i, part := range strings.Split(text, ", from ") {
		from, answer := kernels[0], part
		if i > 0 {
			from, answer, _ = strings.Cut(part, " ")
			if slices.Index(kernels, from) <= slices.Index(kernels, a[i-1].from) {
				return nil, fmt.Errorf("%q: no kernel %s, or not in order", text, from)
			}
		}
		if _, ok := errnos[answer]; !ok && !slices.Contains([]string{"yes", "no capability", "ErrOpcode", "never", "-"}, answer) {
			return nil, fmt.Errorf("%q is no answer", answer)
		}
		a = append(a, struct{ from, answer string }{from, answer})
	}
	return a, nil
}

// on returns the answer of a kernel, by its release; ok is false if the tables do not cover
// the kernel.
func (a answers) on(release string) (answer string, ok bool) {
	for _, k := range kernels {
		for _, since := range a {
			if since.from == k {
				answer = since.answer
			}
		}
		if isKernel(release, k) {
			return answer, true
		}
	}
	return "", false
}

// isKernel reports whether a release belongs to a version: 6.1.0-32-amd64 belongs to 6.1.
func isKernel(release, version string) bool {
	rest, ok := strings.CutPrefix(release, version)
	return ok && (rest == "" || strings.Trim(rest[:1], "0123456789") != "")
}
