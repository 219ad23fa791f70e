// Package record keeps what the benchmarks measured, and judges it.
//
//	tests in the lab --Append--> JSON lines, a process each
//	                                  | Collect
//	                                  v
//	docs/benchmarks/*.json --Read--> Run, Line.Verdict --> the page, the plots
//
// The rule for all of it: where one side's figures lie further apart than half
// their median, or are fewer than nine, nobody is told a ratio.
package record
