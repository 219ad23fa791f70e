// Package sys is the system-call layer under uverbs and cm: typed ioctls and
// commands on /dev/infiniband/*.
//
//	Call{Object, Method, Attrs} ─► File.Ioctl ───► RDMA_VERBS_IOCTL
//	write command of uverbs ─────► File.Invoke ──► RDMA_VERBS_IOCTL, as INVOKE_WRITE
//	command of rdma_cm ──────────► WriteCommand ─► write(2)
package sys
