package cm

import (
	"strings"

	"github.com/goverbs/verbs/uverbs"
)

// iWARP differs from InfiniBand and RoCE in how a connection comes up: the
// kernel, which talks MPA with the peer, moves the QP to RTS by itself, so the
// active side hears Established at once and nobody has anything to confirm.
// There are no retries and no RNR: a message that finds no receive ends the
// connection. And after the handshake the first message must come from the
// side that dialed (RFC 5044, section 7.1.1).
func isIWARP(c *uverbs.Context) bool { return strings.HasSuffix(c.Device().NodeType, "RNIC") }
