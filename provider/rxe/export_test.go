package rxe

// WorksInDoorbell reports whether the running kernel sends in doorbells.
func WorksInDoorbell() bool { return worksInDoorbell(release()) }
