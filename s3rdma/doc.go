// Package s3rdma moves the bytes of S3 objects by RDMA, in the protocols that S3 servers and clients
// already speak. HTTP carries the request, its signature and the answer; the server's adapter reads
// or writes the client's memory in between:
//
//	client                                              server
//	┌──────────────────┐  PUT, GET + x-amz-rdma-token   ┌──────────────────────┐
//	│ S3 SDK           │ ─────────────────────────────► │ signature check      │
//	│ registered buffer│ ◄── RDMA READ (PUT) ────────── │ Server.Handler       │
//	│                  │ ◄── RDMA WRITE (GET) ───────── │  └ any http.Handler  │
//	│                  │ ◄── x-amz-rdma-reply: 200 ──── │                      │
//	└──────────────────┘                                └──────────────────────┘
//
// A token names the client's memory. There are two forms: that of NVIDIA's cuObject, on DC queue
// pairs of ConnectX ([DCToken]), and that of elbencho, on RC queue pairs of any RoCE or InfiniBand
// device ([RCToken]). Package hipobj has a third protocol, hipobj-rc-v2 of AMD's hipObject, in which
// the server's staging memory is named to the client.
package s3rdma
