package verbstest

import "time"

// Link is how packets get from one address to another one. The zero Link delivers them at once, in
// order, and loses none. Probabilities are from 0 to 1, and are independent of each other.
type Link struct {
	Delay     time.Duration // of each packet
	Jitter    time.Duration // up to this is added to Delay; packets stay in order
	Bandwidth int64         // in bits per second, of IP packets; 0: without limit
	Queue     int           // how many packets can wait for the bandwidth; more are dropped; 0: without limit

	Loss      float64
	Duplicate float64 // delivered twice
	Corrupt   float64 // one bit that the ICRC covers is changed
	Reorder   float64 // delayed by ReorderDelay more, so that later packets overtake it
}

// ReorderDelay is the additional delay of packets that a link reorders.
const ReorderDelay = 100 * time.Microsecond

// Receiver is how a device receives packets. The zero Receiver is as fast as the program.
type Receiver struct {
	Delay time.Duration // that each packet takes
	Queue int           // how many packets can wait; more are dropped; 0: without limit
}
