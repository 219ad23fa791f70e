// Package debian fetches packages from Debian's archive and unpacks them, on any Linux
// distribution and without installing anything.
//
//	Find, Closure ◄── lists, 6 hours ◄── InRelease (signed) ─► Packages.gz
//	Unpack, Extract ◄── cache ◄── .deb, checked by the lists' SHA-256
//
// Archive.Keys verifies the lists, and they the packages, so the mirror needs no TLS. Nothing is
// run that packages contain. Unpacking needs xz.
package debian
