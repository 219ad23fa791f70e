// Package rsock runs what Go programs commonly do with connections, unmodified,
// over package rsock: HTTP, HTTP/2 over TLS, gRPC, the tests of x/net/nettest.
package rsock
