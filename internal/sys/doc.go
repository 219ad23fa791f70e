// Package sys is the system-call layer under uverbs and cm: typed ioctls and
// commands on /dev/infiniband/*, event files in the runtime's netpoller, and
// the error type both report.
//
//	Call{Object, Method, Attrs} ─► File.Ioctl ─► RDMA_VERBS_IOCTL
//	Write command + structs ─────► File.Invoke ─► the same, as INVOKE_WRITE
//	EventFile.Do(ctx, op) ───────► op until it no longer says EAGAIN
//	  for a moment ──────────────► ppoll, and the netpoller does not have the file
//	  for longer ────────────────► watch: the netpoller has it, and no thread is held
package sys
