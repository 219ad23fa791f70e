// Package bench measures the library beside C programs that do the same work
// on rdma-core, in the same boot, in turns.
//
// The programs in c are the opponents; each has a twin in Go, which takes the
// same arguments and prints the same, line by line: a name and a number.
// Ratios are of medians, and better when greater. Where one side's figures lie
// further apart than half their median, there is no ratio. Package record has
// that rule, the targets, and what belongs to each; benchdoc writes the page.
package bench
