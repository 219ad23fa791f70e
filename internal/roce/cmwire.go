package roce

import (
	"bytes"
	"encoding/binary"
)

// The messages on the wire, as offsets after the header of the management datagram
// (chapter 12 of the specification).

// encoder and decoder access the data after the header. Fields of less than 32 bits that
// share a word are shifted by their callers.
type (
	encoder struct{ data []byte }
	decoder struct{ data []byte }
)

func encode(mad *[MADSize]byte) encoder { return encoder{mad[MADHeaderSize:]} }
func decode(mad *[MADSize]byte) decoder { return decoder{mad[MADHeaderSize:]} }

func (e encoder) u16(at int, v uint16) { binary.BigEndian.PutUint16(e.data[at:], v) }
func (e encoder) u32(at int, v uint32) { binary.BigEndian.PutUint32(e.data[at:], v) }
func (e encoder) u64(at int, v uint64) { binary.BigEndian.PutUint64(e.data[at:], v) }

// u24 writes a 24 bit field and the byte after it.
func (e encoder) u24(at int, v uint32, low uint8) { e.u32(at, v<<8|uint32(low)) }

// bytes writes a field of size bytes, and zeros after v.
func (e encoder) bytes(at, size int, v []byte) error {
	if len(v) > size {
		return ErrPrivateData
	}
	copy(e.data[at:], v)
	return nil
}

func (d decoder) u8(at int) uint8   { return d.data[at] }
func (d decoder) u16(at int) uint16 { return binary.BigEndian.Uint16(d.data[at:]) }
func (d decoder) u32(at int) uint32 { return binary.BigEndian.Uint32(d.data[at:]) }
func (d decoder) u64(at int) uint64 { return binary.BigEndian.Uint64(d.data[at:]) }
func (d decoder) u24(at int) uint32 { return d.u32(at) >> 8 }

// bytes returns a copy.
func (d decoder) bytes(at, size int) []byte { return bytes.Clone(d.data[at : at+size]) }

// Fields of the header that messages have.
func setModifier(mad *[MADSize]byte, v uint32) { binary.BigEndian.PutUint32(mad[20:], v) }
func modifier(mad *[MADSize]byte) uint32       { return binary.BigEndian.Uint32(mad[20:]) }

// bit returns v, shifted, if it is set.
func bit(set bool, shift int) uint8 {
	if set {
		return 1 << shift
	}
	return 0
}

func (m *REQ) encode(mad *[MADSize]byte) error {
	setModifier(mad, m.ECEOptions)
	e := encode(mad)
	e.u32(0, m.LocalCommID)
	e.u32(4, m.VendorID&mask24)
	e.u64(8, uint64(m.ServiceID))
	e.u64(16, m.LocalCAGUID)
	e.u32(28, m.LocalQKey)
	e.u24(32, m.LocalQPN, m.ResponderResources)
	e.u24(36, m.LocalEECN, m.InitiatorDepth)
	e.u24(40, m.RemoteEECN, m.RemoteCMResponseTimeout<<3|uint8(m.Transport)&3<<1|bit(m.FlowControl, 0))
	e.u24(44, m.StartingPSN, m.LocalCMResponseTimeout<<3|m.RetryCount&7)
	e.u16(48, m.PKey)
	e.data[50] = m.PathMTU<<4 | bit(m.RDCExists, 3) | m.RNRRetryCount&7
	e.data[51] = m.MaxCMRetries<<4 | bit(m.SRQ, 3) | m.ExtendedTransport&7
	m.Primary.encode(e.data[52:96])
	m.Alternate.encode(e.data[96:140])
	e.data[139] |= bit(m.SAPSupported, 2)
	return e.bytes(140, REQPrivateData, m.PrivateData)
}

func (m *REQ) decode(mad *[MADSize]byte) {
	d := decode(mad)
	*m = REQ{
		LocalCommID:             d.u32(0),
		VendorID:                d.u32(4) & mask24,
		ECEOptions:              modifier(mad),
		ServiceID:               ServiceID(d.u64(8)),
		LocalCAGUID:             d.u64(16),
		LocalQKey:               d.u32(28),
		LocalQPN:                d.u24(32),
		ResponderResources:      d.u8(35),
		LocalEECN:               d.u24(36),
		InitiatorDepth:          d.u8(39),
		RemoteEECN:              d.u24(40),
		RemoteCMResponseTimeout: d.u8(43) >> 3,
		Transport:               CMTransport(d.u8(43) >> 1 & 3),
		FlowControl:             d.u8(43)&1 != 0,
		StartingPSN:             d.u24(44),
		LocalCMResponseTimeout:  d.u8(47) >> 3,
		RetryCount:              d.u8(47) & 7,
		PKey:                    d.u16(48),
		PathMTU:                 d.u8(50) >> 4,
		RDCExists:               d.u8(50)&(1<<3) != 0,
		RNRRetryCount:           d.u8(50) & 7,
		MaxCMRetries:            d.u8(51) >> 4,
		SRQ:                     d.u8(51)&(1<<3) != 0,
		ExtendedTransport:       d.u8(51) & 7,
		SAPSupported:            d.u8(139)&(1<<2) != 0,
		PrivateData:             d.bytes(140, REQPrivateData),
	}
	m.Primary.decode(d.data[52:96])
	m.Alternate.decode(d.data[96:140])
}

func (p *CMPath) encode(b []byte) {
	be := binary.BigEndian
	be.PutUint16(b, p.LocalLID)
	be.PutUint16(b[2:], p.RemoteLID)
	copy(b[4:], p.LocalGID[:])
	copy(b[20:], p.RemoteGID[:])
	be.PutUint32(b[36:], p.FlowLabel<<12|uint32(p.PacketRate&0x3f))
	b[40] = p.TrafficClass
	b[41] = p.HopLimit
	b[42] = p.SL<<4 | bit(p.SubnetLocal, 3)
	b[43] = p.LocalACKTimeout << 3
}

func (p *CMPath) decode(b []byte) {
	be := binary.BigEndian
	*p = CMPath{
		LocalLID:        be.Uint16(b),
		RemoteLID:       be.Uint16(b[2:]),
		LocalGID:        [16]byte(b[4:]),
		RemoteGID:       [16]byte(b[20:]),
		FlowLabel:       be.Uint32(b[36:]) >> 12,
		PacketRate:      b[39] & 0x3f,
		TrafficClass:    b[40],
		HopLimit:        b[41],
		SL:              b[42] >> 4,
		SubnetLocal:     b[42]&(1<<3) != 0,
		LocalACKTimeout: b[43] >> 3,
	}
}

func (m *MRA) encode(mad *[MADSize]byte) error {
	e := encode(mad)
	e.u32(0, m.LocalCommID)
	e.u32(4, m.RemoteCommID)
	e.data[8] = uint8(m.Message) << 6
	e.data[9] = m.ServiceTimeout << 3
	return e.bytes(10, MRAPrivateData, m.PrivateData)
}

func (m *MRA) decode(mad *[MADSize]byte) {
	d := decode(mad)
	*m = MRA{d.u32(0), d.u32(4), Answered(d.u8(8) >> 6), d.u8(9) >> 3, d.bytes(10, MRAPrivateData)}
}

func (m *REJ) encode(mad *[MADSize]byte) error {
	e := encode(mad)
	e.u32(0, m.LocalCommID)
	e.u32(4, m.RemoteCommID)
	e.data[8] = uint8(m.Message) << 6
	e.data[9] = uint8(len(m.Info)) << 1
	e.u16(10, uint16(m.Reason))
	if err := e.bytes(12, REJInfo, m.Info); err != nil {
		return err
	}
	return e.bytes(84, REJPrivateData, m.PrivateData)
}

func (m *REJ) decode(mad *[MADSize]byte) {
	d := decode(mad)
	*m = REJ{
		LocalCommID:  d.u32(0),
		RemoteCommID: d.u32(4),
		Message:      Answered(d.u8(8) >> 6),
		Reason:       RejectReason(d.u16(10)),
		Info:         d.bytes(12, min(int(d.u8(9)>>1), REJInfo)),
		PrivateData:  d.bytes(84, REJPrivateData),
	}
}

func (m *REP) encode(mad *[MADSize]byte) error {
	setModifier(mad, m.ECEOptions)
	e := encode(mad)
	e.u32(0, m.LocalCommID)
	e.u32(4, m.RemoteCommID)
	e.u32(8, m.LocalQKey)
	e.u24(12, m.LocalQPN, uint8(m.VendorID>>16))
	e.u24(16, m.LocalEECN, uint8(m.VendorID>>8))
	e.u24(20, m.StartingPSN, uint8(m.VendorID))
	e.data[24] = m.ResponderResources
	e.data[25] = m.InitiatorDepth
	e.data[26] = m.TargetACKDelay<<3 | m.FailoverAccepted&3<<1 | bit(m.FlowControl, 0)
	e.data[27] = m.RNRRetryCount<<5 | bit(m.SRQ, 4)
	e.u64(28, m.LocalCAGUID)
	return e.bytes(36, REPPrivateData, m.PrivateData)
}

func (m *REP) decode(mad *[MADSize]byte) {
	d := decode(mad)
	*m = REP{
		LocalCommID:        d.u32(0),
		RemoteCommID:       d.u32(4),
		LocalQKey:          d.u32(8),
		LocalQPN:           d.u24(12),
		VendorID:           uint32(d.u8(15))<<16 | uint32(d.u8(19))<<8 | uint32(d.u8(23)),
		ECEOptions:         modifier(mad),
		LocalEECN:          d.u24(16),
		StartingPSN:        d.u24(20),
		ResponderResources: d.u8(24),
		InitiatorDepth:     d.u8(25),
		TargetACKDelay:     d.u8(26) >> 3,
		FailoverAccepted:   d.u8(26) >> 1 & 3,
		FlowControl:        d.u8(26)&1 != 0,
		RNRRetryCount:      d.u8(27) >> 5,
		SRQ:                d.u8(27)&(1<<4) != 0,
		LocalCAGUID:        d.u64(28),
		PrivateData:        d.bytes(36, REPPrivateData),
	}
}

func (m *RTU) encode(mad *[MADSize]byte) error {
	e := encode(mad)
	e.u32(0, m.LocalCommID)
	e.u32(4, m.RemoteCommID)
	return e.bytes(8, RTUPrivateData, m.PrivateData)
}

func (m *RTU) decode(mad *[MADSize]byte) {
	d := decode(mad)
	*m = RTU{d.u32(0), d.u32(4), d.bytes(8, RTUPrivateData)}
}

func (m *DREQ) encode(mad *[MADSize]byte) error {
	e := encode(mad)
	e.u32(0, m.LocalCommID)
	e.u32(4, m.RemoteCommID)
	e.u24(8, m.RemoteQPN, 0)
	return e.bytes(12, DREQPrivateData, m.PrivateData)
}

func (m *DREQ) decode(mad *[MADSize]byte) {
	d := decode(mad)
	*m = DREQ{d.u32(0), d.u32(4), d.u24(8), d.bytes(12, DREQPrivateData)}
}

func (m *DREP) encode(mad *[MADSize]byte) error {
	e := encode(mad)
	e.u32(0, m.LocalCommID)
	e.u32(4, m.RemoteCommID)
	return e.bytes(8, DREPPrivateData, m.PrivateData)
}

func (m *DREP) decode(mad *[MADSize]byte) {
	d := decode(mad)
	*m = DREP{d.u32(0), d.u32(4), d.bytes(8, DREPPrivateData)}
}

func (m *SIDRREQ) encode(mad *[MADSize]byte) error {
	e := encode(mad)
	e.u32(0, m.RequestID)
	e.u16(4, m.PKey)
	e.u64(8, uint64(m.ServiceID))
	return e.bytes(16, SIDRREQPrivateData, m.PrivateData)
}

func (m *SIDRREQ) decode(mad *[MADSize]byte) {
	d := decode(mad)
	*m = SIDRREQ{d.u32(0), d.u16(4), ServiceID(d.u64(8)), d.bytes(16, SIDRREQPrivateData)}
}

func (m *SIDRREP) encode(mad *[MADSize]byte) error {
	setModifier(mad, m.ECEOptions)
	e := encode(mad)
	e.u32(0, m.RequestID)
	e.data[4] = uint8(m.Status)
	e.data[5] = uint8(len(m.Info))
	e.u16(6, uint16(m.VendorID>>8))
	e.u24(8, m.QPN, uint8(m.VendorID))
	e.u64(12, uint64(m.ServiceID))
	e.u32(20, m.QKey)
	if err := e.bytes(24, SIDRREPInfo, m.Info); err != nil {
		return err
	}
	return e.bytes(96, SIDRREPPrivateData, m.PrivateData)
}

func (m *SIDRREP) decode(mad *[MADSize]byte) {
	d := decode(mad)
	*m = SIDRREP{
		RequestID:   d.u32(0),
		Status:      SIDRStatus(d.u8(4)),
		QPN:         d.u24(8),
		VendorID:    uint32(d.u16(6))<<8 | uint32(d.u8(11)),
		ECEOptions:  modifier(mad),
		ServiceID:   ServiceID(d.u64(12)),
		QKey:        d.u32(20),
		Info:        d.bytes(24, min(int(d.u8(5)), SIDRREPInfo)),
		PrivateData: d.bytes(96, SIDRREPPrivateData),
	}
}
