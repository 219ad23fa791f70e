// Package rsock runs common users of net.Conn, unmodified, over package rsock: HTTP, HTTP/2
// over TLS, gRPC, and the tests of x/net/nettest.
package rsock
