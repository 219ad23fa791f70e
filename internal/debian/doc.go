// Package debian fetches and unpacks Debian packages without installing them:
// kernel headers for the generator, kernels for the lab, and the packages with
// which their modules are built.
//
//	Archive.Find ─────┬─► package lists ──► Packages ──► Archive.Unpack, Extract ──► folder
//	Archive.Closure ──┘        ▲                                │
//	                    apt-get update           apt-get download, dpkg-deb -x
//
// It calls apt-get, which uses the machine's proxies, mirrors and keys, but with
// separate package lists: suites that the machine does not install from can be
// read, no root is needed, and the machine's own state does not change.
// Everything is in one cache folder and is fetched once; several processes may
// use the folder at the same time.
package debian
