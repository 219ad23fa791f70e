package main

import (
	"strings"
	"testing"
)

// FuzzFind searches what a server has in its memory, which may be anything.
func FuzzFind(f *testing.F) {
	t := newTable()
	if err := t.set("key", "value"); err != nil {
		f.Fatal(err)
	}
	f.Add(string(t[slotOf("key"):][:slotSize]), "key")
	f.Add(strings.Repeat("\xff", probes*slotSize), "key")
	f.Fuzz(func(t *testing.T, slots, key string) {
		part := make([]byte, probes*slotSize)
		copy(part, slots)
		for slot := range probes { // a server that means harm has right checksums
			seal(part[slot*slotSize:][:slotSize])
		}
		if value, err := find(part, key); err == nil && headSize+len(key)+len(value) > slotSize {
			t.Errorf("%q: %q", key, value)
		}
	})
}
