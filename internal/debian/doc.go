// Package debian fetches and unpacks Debian packages without installing them:
// kernel headers for the generator, kernels for the lab and what builds their
// modules.
//
//	Archive.Find ─────┬─► package lists ──► Packages ──► Archive.Unpack, Extract ──► folder
//	Archive.Closure ──┘        ▲                                │
//	                    apt-get update           apt-get download, dpkg-deb -x
//
// apt-get does the work, so the machine's proxies, mirrors and keys are used,
// but on package lists of its own: suites the machine does not install from
// can be read, no root is needed, and the machine's own state stays as it is.
// Everything lies in one cache folder and is fetched once; several processes
// may use it at the same time.
package debian
