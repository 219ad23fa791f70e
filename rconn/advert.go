package rconn

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	"github.com/goverbs/verbs"
)

// AdvertSize is the length of an advertisement, in a message or in private data.
// All its numbers are big-endian:
//
//	offset  bytes
//	     0      2  0xad7e
//	     2      1  version: 1
//	     3      1  access: 1 the peer may write, 2 read, 4 do atomics
//	     4      4  tag: what the sender calls the region
//	     8      8  address of the first byte
//	    16      8  length in bytes, at least 1
//	    24      4  remote key
//	    28      4  CRC-32C of all before
const AdvertSize = 32

const (
	advertMagic   = 0xad7e
	advertVersion = 1
)

// accessBits are the access byte's, from its lowest.
var accessBits = [...]verbs.Access{verbs.AccessRemoteWrite, verbs.AccessRemoteRead, verbs.AccessRemoteAtomic}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// AppendAdvert appends the advertisement of a part of a region to b: what
// [Conn.PostAdvert] sends.
func AppendAdvert(b []byte, tag uint32, s Span) ([]byte, error) {
	if s.Region == nil || s.Len == 0 {
		return b, fmt.Errorf("nothing to advertise: %w", verbs.ErrRange)
	}
	if err := s.check(s.Region.pd, 0); err != nil {
		return b, err
	}
	var access byte
	for i, bit := range accessBits {
		if s.Region.access&bit != 0 {
			access |= 1 << i
		}
	}
	if access == 0 {
		return b, fmt.Errorf("%v: nothing in it is for peers: %w", s.Region, ErrAccess)
	}
	start := len(b)
	b = binary.BigEndian.AppendUint16(b, advertMagic)
	b = append(b, advertVersion, access)
	b = binary.BigEndian.AppendUint32(b, tag)
	b = binary.BigEndian.AppendUint64(b, s.Region.mr.Addr()+uint64(s.Off))
	b = binary.BigEndian.AppendUint64(b, uint64(s.Len))
	b = binary.BigEndian.AppendUint32(b, s.Region.mr.RKey())
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli)), nil
}

// ParseAdvert reads an advertisement, which b must be all of.
func ParseAdvert(b []byte) (RemoteRegion, error) {
	bad := func(why string) (RemoteRegion, error) {
		return RemoteRegion{}, fmt.Errorf("%w: %s", ErrAdvert, why)
	}
	switch {
	case len(b) != AdvertSize:
		return bad(fmt.Sprintf("%d bytes in place of %d", len(b), AdvertSize))
	case binary.BigEndian.Uint16(b) != advertMagic:
		return bad("a message of another kind")
	case binary.BigEndian.Uint32(b[28:]) != crc32.Checksum(b[:28], castagnoli):
		return bad("its checksum is wrong")
	case b[2] != advertVersion:
		return bad(fmt.Sprintf("version %d", b[2]))
	}
	r := RemoteRegion{Tag: binary.BigEndian.Uint32(b[4:]), Addr: binary.BigEndian.Uint64(b[8:]), Key: binary.BigEndian.Uint32(b[24:])}
	for i, bit := range accessBits {
		if b[3]&(1<<i) != 0 {
			r.Access |= bit
		}
	}
	if r.Access == 0 || b[3]>>len(accessBits) != 0 {
		return bad(fmt.Sprintf("access %#x", b[3]))
	}
	n := binary.BigEndian.Uint64(b[16:])
	if n == 0 || n > math.MaxInt || r.Addr+n-1 < r.Addr {
		return bad(fmt.Sprintf("%d bytes at %#x", n, r.Addr))
	}
	r.Len = int(n)
	return r, nil
}

// ParseAdverts reads the advertisements at the start of private data, and
// returns what follows them.
func ParseAdverts(b []byte) (adverts []RemoteRegion, rest []byte) {
	for len(b) >= AdvertSize {
		r, err := ParseAdvert(b[:AdvertSize])
		if err != nil {
			break
		}
		adverts, b = append(adverts, r), b[AdvertSize:]
	}
	return adverts, b
}

// Announce advertises a part of a region in the private data, ahead of
// [Options].PrivateData and after those announced before. It is for
// Options.Setup. RoCE has room for one with a request for a connection, and for
// six with its acceptance; iWARP for seven.
func (c *Conn) Announce(tag uint32, s Span) error {
	b, err := AppendAdvert(c.announced, tag, s)
	if err == nil {
		c.announced = b
		err = c.ep.Announce(slices.Concat(b, c.private))
	}
	if err != nil {
		return c.fail("announce to", err)
	}
	return nil
}
