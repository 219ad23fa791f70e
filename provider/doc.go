// Package provider is what a driver implements (the SPI) and the data-path
// types it speaks: work requests, completions and the queues between.
//
//	[]SendWR ──► SendQueue ─┐ mapped ring + doorbell ┌─► CompletionQueue ──► []WC
//	[]RecvWR ──► RecvQueue ─┴──── kernel driver ─────┘
//
// Programs use these types through package uverbs, which re-exports them and
// picks the [Driver]. A driver only knows its queues' layout and encodings;
// objects, handles and lifetimes are uverbs' business.
package provider
