// Command parts runs the tests that make test-all promises, in parts of at most 75 minutes each on two
// processors without KVM:
//
//	parts            all, one after the other
//	parts NAME ...   these
//	parts -list      print the names
//	parts -page      write the page only, when the table of parts has changed
//
// For each part it adds a row to docs/test-parts.json: the commit, the machine and its load, the time, and the tests
// that passed, failed and were skipped, with the reasons. docs/test-parts.md shows the rows. It runs make, with
// itself as the go command, to count the tests: see command.
package main
