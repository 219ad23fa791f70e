//go:build linux

package job

import (
	"iter"
	"regexp"
	"slices"
	"strings"
)

// "general protection fault ip:" is not matched: it reports a program that crashed.
var reWarning = regexp.MustCompile(`WARNING: |BUG: |Oops|KASAN|general protection fault[:,]|refcount_t`)

// expectPrefix begins a line that a program writes to the kernel's log. A part of the warning
// that the program will cause follows.
const expectPrefix = "lab: expect warning: "

// Warnings returns the lines of a kernel's log that report an unexpected bug, each with the
// trace that follows it, and those that report a bug that a program has announced.
func Warnings(log iter.Seq[string]) (found, expected []string) {
	var known []string
	follow := 0
	for line := range log {
		if _, text, ok := strings.Cut(line, expectPrefix); ok {
			known = append(known, strings.TrimSpace(text))
			continue
		}
		if reWarning.MatchString(line) {
			if slices.ContainsFunc(known, func(text string) bool { return strings.Contains(line, text) }) {
				expected = append(expected, strings.TrimSpace(line))
			} else {
				follow = 30
			}
		}
		if follow > 0 {
			follow--
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found, expected
}
