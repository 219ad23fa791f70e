// Package bench measures the library beside C programs that do the same work on
// rdma-core, in the same boot.
//
// The programs in c have twins in Go, which take the same arguments and print the same:
// lines of a name and its figures. A client measures once for each line of its standard
// input, so that Go and C take turns without being started again:
//
//	test ──"\n"──► client in Go ──► its server     turn 1
//	     ──"\n"──► client in C  ──► its server
//	     ──"\n"──► client in C                     turn 2
//	     ──"\n"──► client in Go                    …
//
// Figures of some turns are a pair. Package record compares the pairs and has the groups of
// lines, benchdoc writes the page.
package bench
