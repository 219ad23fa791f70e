// Package suites runs the test suites of the standard library and of other projects over package
// rsock, without a change of theirs: the toolchain's net.Dialer and net.ListenConfig ask a hook
// first.
//
//	a copy of GOROOT, build/suites/go                        the suite, as its module has it
//	  net.ListenConfig.Listen, net.Dialer.DialContext            │ go test -c, with that GOROOT
//	     └─► hook, if it is set ◄── testdata/hook ◄── testing    ▼
//	              └─► rsock, soft (vendored into std)         one binary, run by TCP and by RDMA
//
// A suite passes if over RDMA nothing fails that passes over TCP, but for the tests that are named
// here with the reason why they cannot pass. docs/programs.md has the table.
package suites
