package rxe

// SendsInDoorbell reports whether the running kernel sends in doorbells.
func SendsInDoorbell() bool { return inDoorbell() }
