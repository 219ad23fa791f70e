package net

import "context"

// HookListen and HookDial, if set, may take over a listener or a connection.
var (
	HookListen func(ctx context.Context, lc *ListenConfig, network, address string) (l Listener, taken bool, err error)
	HookDial   func(ctx context.Context, d *Dialer, network, address string) (c Conn, taken bool, err error)
)
