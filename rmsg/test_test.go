package rmsg

import "testing"

// TestNoTestWithReads tests that a connection is not tested by a request of no bytes while a READ is in flight,
// which rxe would not answer again after it.
func TestNoTestWithReads(t *testing.T) {
	c := &Conn{state: Established} // which has no queue pair to post to
	c.in.reads.inFlight = 1
	if err := c.test(true); err != nil || c.testing {
		t.Errorf("%v; a test is in flight: %v", err, c.testing)
	}
}
