package ibcm

// serviceKey names a service ID of a device.
type serviceKey struct {
	device  *Device
	service uint64
}

// Listener receives the requests for a service ID on a device (IBA, 12.7.3). Its users share it.
type Listener struct {
	key     serviceKey
	handler Handler
	users   int
}

// Listen returns the listener for a service ID. All callers for one service ID get the same
// listener, with the handler of the first one (ib_cm_insert_listen). Close releases it.
func (d *Device) Listen(service uint64, h Handler) *Listener {
	m, key := d.manager, serviceKey{d, service}
	l := m.listeners[key]
	if l == nil {
		l = &Listener{key: key, handler: h}
		m.listeners[key] = l
	}
	l.users++
	return l
}

// Close releases the listener. The last user's call ends it.
func (l *Listener) Close() {
	if l.users--; l.users == 0 {
		delete(l.key.device.manager.listeners, l.key)
	}
}
