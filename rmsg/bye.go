package rmsg

import "time"

// bye is how far the end of a connection has come. A side that has sent all messages says bye, and
// answers the peer's bye; messages arrive in order, so a side that hears bye has all messages of
// the peer. The side whose bye was answered ends the connection. If both said bye before they heard
// the other's, the dialing side ends it when both have answered.
//
//	none ──say──► said ──answer──► over
//	  │             └──hear──► crossed ──say──► crossedAnswered ──answer──► crossedOver
//	  └──hear──► heard            └──answer──► crossedHeard ──say──────────────┘
//	               └──say──► answered
type bye uint8

const (
	byeNone bye = iota
	byeSaid
	byeHeard
	byeAnswered
	byeOver
	byeCrossed
	byeCrossedAnswered
	byeCrossedHeard
	byeCrossedOver
)

// ending is how and why a connection ends.
type ending struct {
	err          error // why it ends; nil before
	closed       bool  // Close was called
	lost         bool  // it has ended, and messages of this side have failed
	bye          bye
	byeDelivered bool        // the answer has reached the peer
	goodEnd      error       // why it ends if nothing is missing; nil before Disconnecting
	linger       *time.Timer // bounds the goodbye
	flushed      *time.Timer // runs since a request was flushed
}

// byeSteps has the next states: when this side says bye or answers, when it hears the peer's bye,
// and when it hears the answer. byeNone stands for an impossible step.
var byeSteps = [...]struct{ say, hear, answer bye }{
	byeNone:            {say: byeSaid, hear: byeHeard},
	byeSaid:            {hear: byeCrossed, answer: byeOver},
	byeHeard:           {say: byeAnswered},
	byeCrossed:         {say: byeCrossedAnswered, answer: byeCrossedHeard},
	byeCrossedAnswered: {answer: byeCrossedOver},
	byeCrossedHeard:    {say: byeCrossedOver},
	byeCrossedOver:     {},
}

func (b bye) heard() bool { return b != byeNone && b != byeSaid }

// ends reports whether this side must end the connection.
func (b bye) ends(dialed bool) bool { return b == byeOver || b == byeCrossedOver && dialed }
