package verbs

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// GID is a global identifier. It has the form of an IPv6 address; on RoCE v2 it is the
// address of the network interface, IPv4 mapped to IPv6.
type GID [16]byte

// ParseGID parses a GID as String formats it, or an IP address.
func ParseGID(s string) (GID, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return GID{}, fmt.Errorf("parse GID %q: not an IP address without a zone", s)
	}
	return a.As16(), nil
}

// Addr returns the GID as an IP address. It unmaps IPv4 addresses.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// String returns the GID as ibv_devinfo prints it: fe80::1, ::ffff:10.9.0.1.
func (g GID) String() string { return netip.AddrFrom16(g).String() }

// MarshalText implements encoding.TextMarshaler. It returns the text of String.
func (g GID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler with [ParseGID].
func (g *GID) UnmarshalText(text []byte) (err error) {
	*g, err = ParseGID(string(text))
	return err
}

// GIDType is the kind of traffic that a GID is for (enum ib_uverbs_gid_type).
type GIDType uint32

const (
	GIDIB     GIDType = 0
	GIDRoCEv1 GIDType = 1
	GIDRoCEv2 GIDType = 2
)

func (t GIDType) String() string {
	return pick(t, "IB", "RoCE v1", "RoCE v2")
}

// GIDEntry is a valid entry of a port's GID table.
type GIDEntry struct {
	Port      int
	Index     int
	GID       GID
	Type      GIDType
	Interface int // index of the network interface; 0 if there is none
}

// GUID is a 64-bit identifier of a device or system, in network byte order.
type GUID [8]byte

// ParseGUID parses a GUID of 16 hexadecimal digits, as String formats it, or with colons
// between groups, as sysfs does: 5054:00ff:fe12:3456.
func ParseGUID(s string) (g GUID, err error) {
	v, err := strconv.ParseUint(strings.ReplaceAll(s, ":", ""), 16, 64)
	if err != nil {
		return g, fmt.Errorf("parse GUID %q: not 16 hexadecimal digits", s)
	}
	binary.BigEndian.PutUint64(g[:], v)
	return g, nil
}

// String returns the GUID as ibv_devices prints it: 505400fffe123456.
func (g GUID) String() string { return fmt.Sprintf("%x", [8]byte(g)) }

// MarshalText implements encoding.TextMarshaler. It returns the text of String.
func (g GUID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler with [ParseGUID].
func (g *GUID) UnmarshalText(text []byte) (err error) {
	*g, err = ParseGUID(string(text))
	return err
}
