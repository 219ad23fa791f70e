package mmap

func barrierToDevice()
func barrierFromDevice()
