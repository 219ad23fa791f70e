package rconn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"syscall"

	"github.com/goverbs/verbs"
)

// AdvertSize is the length of an advertisement, in a message or in private data. Its format is in
// docs/protocols.md.
const AdvertSize = 32

const (
	advertMagic   = 0xad7e
	advertVersion = 1
)

// accessBits has the right of each bit of the access byte, from the lowest on.
var accessBits = [...]verbs.Access{
	verbs.AccessRemoteWrite, verbs.AccessRemoteRead, verbs.AccessRemoteAtomic,
	verbs.AccessFlushGlobal, verbs.AccessFlushPersistent,
}

// remoteAccess is every right that an advertisement can grant.
const remoteAccess = verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic |
	verbs.AccessFlushGlobal | verbs.AccessFlushPersistent

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendAdvert appends to b the advertisement of a part of a region, as [Advert] sends it.
func appendAdvert(b []byte, tag uint32, s Span) ([]byte, error) {
	if s.Region == nil {
		return b, fmt.Errorf("nothing to advertise: %w", verbs.ErrRange)
	}
	if err := s.check(s.Region.pd, 0); err != nil {
		return b, err
	}
	mr := s.Region.mr
	r := RemoteRegion{Tag: tag, Addr: mr.Addr() + uint64(s.Off), Len: s.Len, Key: mr.RKey(), Access: s.Region.access & remoteAccess}
	if r.Len > 0 && r.Access == 0 {
		return b, fmt.Errorf("%v grants peers nothing: %w", s.Region, ErrAccess)
	}
	return r.AppendAdvert(b)
}

// AppendAdvert appends to b the advertisement from which [ParseAdvert] makes r.
func (r RemoteRegion) AppendAdvert(b []byte) ([]byte, error) {
	switch {
	case r.Len < 1 || r.Addr+uint64(r.Len)-1 < r.Addr:
		return b, fmt.Errorf("nothing to advertise: %d bytes at %#x: %w", r.Len, r.Addr, verbs.ErrRange)
	case r.Access&remoteAccess == 0:
		return b, fmt.Errorf("%v grants peers nothing: %w", r, ErrAccess)
	}
	var access byte
	for i, bit := range accessBits {
		if r.Access&bit != 0 {
			access |= 1 << i
		}
	}
	start := len(b)
	b = binary.BigEndian.AppendUint16(b, advertMagic)
	b = append(b, advertVersion, access)
	b = binary.BigEndian.AppendUint32(b, r.Tag)
	b = binary.BigEndian.AppendUint64(b, r.Addr)
	b = binary.BigEndian.AppendUint64(b, uint64(r.Len))
	b = binary.BigEndian.AppendUint32(b, r.Key)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli)), nil
}

// ParseAdvert returns the region of the advertisement b. If b has another length or is
// not valid, the error matches [ErrAdvert].
func ParseAdvert(b []byte) (RemoteRegion, error) {
	bad := func(why string) (RemoteRegion, error) {
		return RemoteRegion{}, fmt.Errorf("%w: %s", ErrAdvert, why)
	}
	switch {
	case len(b) != AdvertSize:
		return bad(fmt.Sprintf("%d bytes, not %d", len(b), AdvertSize))
	case binary.BigEndian.Uint16(b) != advertMagic:
		return bad("message of another kind")
	case binary.BigEndian.Uint32(b[28:]) != crc32.Checksum(b[:28], castagnoli):
		return bad("wrong checksum")
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

// parseAdverts returns the regions of the advertisements at the start of private data,
// and the rest of it.
func parseAdverts(b []byte) (adverts []RemoteRegion, rest []byte) {
	for len(b) >= AdvertSize {
		r, err := ParseAdvert(b[:AdvertSize])
		if err != nil {
			break
		}
		adverts, b = append(adverts, r), b[AdvertSize:]
	}
	return adverts, b
}

// Announce adds the advertisement of a part of a region to the private data, before
// Options.PrivateData and after those announced earlier. Options.Setup calls it. RoCE has room for
// one in a request for a connection, and for six in its acceptance; iWARP has room for seven. On a
// connection that is up it fails with an error that matches EISCONN: use [Conn.Post] of an
// [Advert].
func (c *Conn) Announce(tag uint32, s Span) error {
	b, err := appendAdvert(c.announced, tag, s)
	if err == nil {
		if err = c.ep.Announce(slices.Concat(b, c.private)); err == nil {
			c.announced = b
		} else if errors.Is(err, syscall.EISCONN) {
			err = fmt.Errorf("the private data has been sent, announce in Options.Setup or Post(Advert(...)): %w", syscall.EISCONN)
		}
	}
	return c.fail("announce to", err)
}
