package mmap

// scratchSize holds all but the longest requests and responses.
const scratchSize = 4096

// idle is scratch memory in nobody's hands, as much as calls commonly overlap.
var idle = make(chan *Buffer, 8)

// Scratch returns at least size bytes for what one system call passes by
// address, with whatever the last one left in them. Outside the Go heap nothing
// needs pinning, and what is copied there need not be on the heap itself.
// FreeScratch takes them back.
func Scratch(size int) (*Buffer, error) {
	if size <= scratchSize {
		select {
		case b := <-idle:
			return b, nil
		default:
			size = scratchSize
		}
	}
	return NewBuffer(size, BufferOptions{})
}

// FreeScratch keeps scratch memory for others, or frees it.
func FreeScratch(b *Buffer) {
	if b.size == scratchSize {
		select {
		case idle <- b:
			return
		default:
		}
	}
	b.Close()
}
