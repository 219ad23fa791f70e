// Package bench compares the library with C programs that do the same work on rdma-core, in
// the same boot.
//
// The programs in c have counterparts in Go, which take the same arguments and print the
// same: lines of a name and its figures. A client measures once for each line of its
// standard input, so that Go and C take turns without being started again:
//
//	test ──"\n"──► client in Go ──► its server     turn 1
//	     ──"\n"──► client in C  ──► its server
//	     ──"\n"──► client in C                     turn 2
//	     ──"\n"──► client in Go                    …
//
// The figures of several turns are a pair. Package record compares the pairs and defines the
// lines; benchdoc writes the page.
package bench
