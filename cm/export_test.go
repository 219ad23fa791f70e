package cm

// Refuse lets the connection manager refuse all commands about the ID, which it takes for another,
// until restore is called.
func (id *ID) Refuse() (restore func()) {
	handle := id.handle
	set := func(handle uint32) {
		id.closing.Lock() // Close may be under way, in a timer's goroutine
		defer id.closing.Unlock()
		id.handle = handle
	}
	set(1 << 30)
	return func() { set(handle) }
}

// AddID adds an ID that the kernel does not know.
func (t *Transport) AddID() (*ID, error) { return t.addID(PortSpaceTCP, nil) }

// Forget undoes AddID.
func (id *ID) Forget() { id.m.forget(id) }

// LeavingLen returns the number of IDs whose peers have not answered yet.
func (t *Transport) LeavingLen() int {
	t.leaving.mu.Lock()
	defer t.leaving.mu.Unlock()
	return len(t.leaving.ids)
}
