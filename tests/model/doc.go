// Package model makes calls of package uverbs in random order, with arguments
// that are good, bad, closed or somebody else's, and compares what each answers
// with a small model of what there is:
//
//	bytes ──► which call, on what ──► kernel ──► error, completions
//	                     └─────────► model  ──► the error it must be, the
//	                                            completions there must be
//
// The bytes come from a seed that is printed.
package model
