// Package s3 has programs of others judge packages s3rdma and hipobj. Their own checks decide, and the
// bytes at both ends. Command s3doc writes a table of what they say.
//
//	s3rdma.Client, hipobj.Client          s3rdma.Server, hipobj.Handler
//	  │ vgwrdma_test.go, elbencho_test.go   │ cuobjtest_test.go, elbencho_test.go
//	  ├─ HTTP, RC ─► vgwrdma                ├─ HTTP, DC ── cuobjtest, hostclient
//	  └─ HTTP, RC ─► s3rdma-server          ├─ HTTP, RC ── s3rdma-client
//	                                        └─ HTTP, RC ── hipobj-v2-data-client
//
// Command mkpeers builds programs from the module of versitygw into build/judges: its gateway vgwrdma, whose
// server of hipobj-rc-v2 is in C++; cuobjtest, a client of cuObject's protocol with libmlx5; and hostclient,
// which has many clients of cuobjtest's kind at a time. The programs of elbencho (s3rdma-server,
// s3rdma-client with the library libcuobjclient.so.1) and of hipObject (hipobj-v2-data-client) are looked for in
// the folder S3_PEERS.
//
// Package hosts has cuobjtest and hostclient on another machine than the server.
package s3
