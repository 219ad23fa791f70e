// Package lifetime closes all objects at all moments: while calls wait, while other goroutines use
// them, twice, and before they are used again. It drops objects that were never closed, and
// transfers data while the garbage collector runs continuously and processes are started. It runs
// every two methods of every object of verbs concurrently, and with its Close (TestPairs). All
// calls must return their documented error, data must be right, and nothing may be leaked. The
// packages have tests of their own for special cases (TestCloseRace, TestUnreachableClosed and
// TestUnreachableMRStaysOpen in uverbs, TestCloseAnyTime in rmsg, TestClose in rconn and rsock).
//
// -times N does everything N times as often.
package lifetime
