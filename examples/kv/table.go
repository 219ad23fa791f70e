package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
)

// table is a hash table in one piece of memory. A key is in one of the slots that follow its
// hash, after keys that were there before it. A slot consists of
//
//	checksum of the rest │ length of the key │ length of the value │ key │ value
//	4 bytes                1 byte              1 byte
//
// and is empty if the length of the key is 0. Keys are never removed. A client may read a slot
// while the server writes it: the checksum shows that.
type table []byte

const (
	slots    = 4096
	slotSize = 128
	headSize = 6
	probes   = 8 // slots in which a key may be

	tableSize = (slots + probes - 1) * slotSize
)

func newTable() table { return make(table, tableSize) }

// slotOf returns the offset of the first slot in which a key may be.
func slotOf(key string) int {
	h := fnv.New32a()
	h.Write([]byte(key))
	return int(h.Sum32()%slots) * slotSize
}

// set stores a pair.
func (t table) set(key, value string) error {
	if key == "" || headSize+len(key)+len(value) > slotSize {
		return fmt.Errorf("key %q: it must not be empty, and %d bytes at most with its value", key, slotSize-headSize)
	}
	part := t[slotOf(key):][:probes*slotSize]
	for slot := part; len(slot) > 0; slot = slot[slotSize:] {
		if own := slot[headSize:][:slot[4]]; len(own) > 0 && string(own) != key {
			continue
		}
		fresh := make([]byte, slotSize)
		fresh[4], fresh[5] = byte(len(key)), byte(len(value))
		copy(fresh[headSize+copy(fresh[headSize:], key):], value)
		seal(fresh)
		copy(slot, fresh)
		return nil
	}
	return fmt.Errorf("key %q: all slots for it are taken", key)
}

// seal sets the checksum of a slot.
func seal(slot []byte) { binary.BigEndian.PutUint32(slot, crc32.ChecksumIEEE(slot[4:])) }

var (
	errTorn   = errors.New("the server is writing it")
	errAbsent = errors.New("no such key")
)

// find returns the value of a key from a copy of the slots in which it may be.
func find(part []byte, key string) (string, error) {
	for slot := part; len(slot) > 0; slot = slot[slotSize:] {
		n, m := int(slot[4]), int(slot[5])
		switch {
		case n == 0:
			return "", fmt.Errorf("key %q: %w", key, errAbsent)
		case binary.BigEndian.Uint32(slot) != crc32.ChecksumIEEE(slot[4:slotSize]):
			return "", errTorn
		case headSize+n+m > slotSize:
			return "", errors.New("the server has a slot that is longer than it can be")
		case string(slot[headSize:][:n]) == key:
			return string(slot[headSize+n:][:m]), nil
		}
	}
	return "", fmt.Errorf("key %q: %w", key, errAbsent)
}
