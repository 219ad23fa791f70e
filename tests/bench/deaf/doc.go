// Package deaf has an mlx5 device without an adapter: nobody hears its doorbells.
//
//	Post ──► queue, doorbell record, registers     memory that nobody reads
//	Poll ◄── CQ ◄── Complete                       what the adapter would write
//
// The kernel's part is a virtual file, with the answers that the kernel gives for an emulated
// ConnectX-6 Dx. So posting and polling can be measured on the machine's own processor.
package deaf
