// Package model makes calls of package uverbs in random order, with arguments
// that are good, bad, closed or foreign, and compares the result of each with a
// small model of the objects:
//
//	bytes ──► which call, on what ──► kernel ──► error, completions
//	                     └─────────► model  ──► expected error and
//	                                            completions
//
// The bytes come from a seed that is printed.
package model
