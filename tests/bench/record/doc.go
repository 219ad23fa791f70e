// Package record stores the results of the benchmarks, and compares them.
//
//	tests in the lab --Append--> JSON lines
//	                                  | Collect
//	                                  v
//	docs/benchmarks/*.json --Read--> Run, Line.Compare --> the page, the plots
//
// Both sides do a work in turns: figure i of Go and figure i of C are a pair. The ratio
// of a line is the geometric mean of its pairs' ratios, with a 95 % interval by
// bootstrap. Only the interval decides the verdict.
package record
