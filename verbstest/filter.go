package verbstest

import "time"

// Filter decides what happens to a packet. Calls are made one after the other, in the order of
// packets, and must not block. A filter can call the methods of the network except Close; it must
// not use the devices on it, except from another goroutine.
type Filter func(p *Packet) Action

// Action is what happens to a packet. The zero Action passes it on to the link.
type Action struct {
	Drop    bool
	Copies  int           // delivered in addition
	Delay   time.Duration // in addition to the link's; later packets overtake this one
	Corrupt bool          // one bit that the ICRC covers is changed
}

// The most common actions.
var (
	Pass = Action{}
	Drop = Action{Drop: true}
)

// Nth returns a filter that does something with the nth packet that matches, from 1, and passes
// all others.
func Nth(n int, match func(p *Packet) bool, a Action) Filter {
	seen := 0
	return func(p *Packet) Action {
		if match(p) {
			if seen++; seen == n {
				return a
			}
		}
		return Pass
	}
}
