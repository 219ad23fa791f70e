// Package lifetime closes everything at every moment: while calls wait, while
// others use it, twice, and before it is used again; drops what was never
// closed; and moves data while the garbage collector runs all the time and
// processes are started. Every two methods of every object of verbs run at the same
// time, and beside its Close (TestPairs). Whatever was called returns its documented error, data
// is right, and nothing is left. The packages have tests of their own for what
// is special to them (TestCloseRace, TestForgotten and TestMRKept in uverbs,
// TestCloseAnyTime in msg, TestClose in conn and rsock).
//
// -times N does everything N times as often.
package lifetime
