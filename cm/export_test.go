package cm

// Refuse lets the connection manager refuse all commands about the ID, which it takes for another,
// until restore is called.
func (id *ID) Refuse() (restore func()) {
	handle := id.handle
	id.handle = 1 << 30
	return func() { id.handle = handle }
}

// AddID adds an ID that the kernel does not know.
func (t *Transport) AddID() (*ID, error) { return t.addID(PortSpaceTCP, nil) }

// Forget undoes AddID.
func (id *ID) Forget() { id.m.forget(id) }
