// Package rsock runs what Go programs commonly do with connections, unmodified,
// over package rsock: HTTP, HTTP/2 over TLS, gRPC.
package rsock
