// Package record stores the results of the benchmarks, and compares them.
//
//	tests in the lab --Append--> lines of JSON
//	                                  | Collect
//	                                  v
//	docs/benchmarks.json --Read--> Results, Line.Compare --> the page and its plot
//
// Both sides do a work in turns: figure i of Go and figure i of C are a pair. The ratio
// of a line is the geometric mean of its pairs' ratios, with a 95 % interval by
// bootstrap. Only the interval decides the verdict.
package record
