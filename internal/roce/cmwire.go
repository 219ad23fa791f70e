package roce

import "bytes"

// cmWire is the datagram that a message is read from or written to. A message has one method,
// fields, which names its fields with their places and does either: places are bytes after the
// header of the datagram and bits of these, the highest of which is bit 0, as the tables of chapter
// 12 of the specification count them: 106 for REQ, 107 MRA, 108 REJ, 110 REP, 111 RTU, 112 DREQ,
// 113 DREP, 119 SIDR_REQ and 120 SIDR_REP (include/rdma/ibta_vol1_c12.h of the kernel has the same
// numbers). Fields that are reserved there are zeros, and are not looked at.
type cmWire struct {
	mad   *[MADSize]byte
	write bool // to a datagram of zeros
	err   error
}

// num reads or writes a number of n bits. Bits of v above these are not written.
func num[T ~uint8 | ~uint16 | ~uint32 | ~uint64](w *cmWire, at, bit, n int, v *T) {
	end := bit + n - 1 // the last bit
	field := w.mad[MADHeaderSize+at:][:end/8+1]
	mask, shift := uint64(1)<<n-1, 7-end%8
	var x uint64
	if w.write {
		x = uint64(*v) & mask << shift
		for i := len(field) - 1; i >= 0; i-- {
			field[i] |= byte(x)
			x >>= 8
		}
		return
	}
	for _, b := range field {
		x = x<<8 | uint64(b)
	}
	*v = T(x >> shift & mask)
}

func (w *cmWire) flag(at, bit int, v *bool) {
	var n uint8
	if *v {
		n = 1
	}
	num(w, at, bit, 1, &n)
	if !w.write {
		*v = n != 0
	}
}

// array reads or writes all bytes of a field.
func (w *cmWire) array(at int, v []byte) {
	field := w.mad[MADHeaderSize+at:][:len(v)]
	if w.write {
		copy(field, v)
	} else {
		copy(v, field)
	}
}

// data reads a field of size bytes, or writes one, with zeros after v.
func (w *cmWire) data(at, size int, v *[]byte) {
	field := w.mad[MADHeaderSize+at:][:size]
	switch {
	case !w.write:
		*v = bytes.Clone(field)
	case len(*v) > size:
		w.err = ErrPrivateData
	default:
		copy(field, *v)
	}
}

// info is data with a number of n bits at another place that tells how long it is.
func (w *cmWire) info(lengthAt, n, at, size int, v *[]byte) {
	length := uint8(len(*v))
	num(w, lengthAt, 0, n, &length)
	if !w.write {
		size = min(int(length), size)
	}
	w.data(at, size, v)
}

// vendor is a number of 24 bits whose bytes may be apart: it was added later, where reserved bytes
// were left.
func (w *cmWire) vendor(v *uint32, at ...int) {
	var all uint32
	for i, a := range at {
		b := uint8(*v >> (16 - 8*i))
		num(w, a, 0, 8, &b)
		all = all<<8 | uint32(b)
	}
	if !w.write {
		*v = all
	}
}

// ids are what the messages of a connection begin with: each side names it by a number of its own,
// and sends the sender's first. REQ has only the sender's, as the other side has not chosen one
// yet.
func (w *cmWire) ids(local, remote *uint32) {
	num(w, 0, 0, 32, local)
	num(w, 4, 0, 32, remote)
}

// ece is the attribute modifier, in the header: the bits of enhanced connection establishment, by
// which vendors agree on options (rdma_get_remote_ece(3)). The standard leaves it zero.
func (w *cmWire) ece(v *uint32) { num(w, -4, 0, 32, v) }

func (m *REQ) fields(w *cmWire) {
	w.ece(&m.ECEOptions)
	num(w, 0, 0, 32, &m.LocalCommID)
	w.vendor(&m.VendorID, 5, 6, 7)
	num(w, 8, 0, 64, &m.ServiceID)
	num(w, 16, 0, 64, &m.LocalCAGUID)
	num(w, 28, 0, 32, &m.LocalQKey)
	num(w, 32, 0, 24, &m.LocalQPN)
	num(w, 35, 0, 8, &m.ResponderResources)
	num(w, 36, 0, 24, &m.LocalEECN)
	num(w, 39, 0, 8, &m.InitiatorDepth)
	num(w, 40, 0, 24, &m.RemoteEECN)
	num(w, 43, 0, 5, &m.RemoteCMResponseTimeout)
	num(w, 43, 5, 2, &m.Transport)
	w.flag(43, 7, &m.FlowControl)
	num(w, 44, 0, 24, &m.StartingPSN)
	num(w, 47, 0, 5, &m.LocalCMResponseTimeout)
	num(w, 47, 5, 3, &m.RetryCount)
	num(w, 48, 0, 16, &m.PKey)
	num(w, 50, 0, 4, &m.PathMTU)
	w.flag(50, 4, &m.RDCExists)
	num(w, 50, 5, 3, &m.RNRRetryCount)
	num(w, 51, 0, 4, &m.MaxCMRetries)
	w.flag(51, 4, &m.SRQ)
	num(w, 51, 5, 3, &m.ExtendedTransport)
	m.Primary.fields(w, 52)
	m.Alternate.fields(w, 96)
	w.flag(139, 5, &m.SAPSupported)
	w.data(140, REQPrivateData, &m.PrivateData)
}

func (p *CMPath) fields(w *cmWire, at int) {
	num(w, at, 0, 16, &p.LocalLID)
	num(w, at+2, 0, 16, &p.RemoteLID)
	w.array(at+4, p.LocalGID[:])
	w.array(at+20, p.RemoteGID[:])
	num(w, at+36, 0, 20, &p.FlowLabel)
	num(w, at+39, 2, 6, &p.PacketRate)
	num(w, at+40, 0, 8, &p.TrafficClass)
	num(w, at+41, 0, 8, &p.HopLimit)
	num(w, at+42, 0, 4, &p.SL)
	w.flag(at+42, 4, &p.SubnetLocal)
	num(w, at+43, 0, 5, &p.LocalACKTimeout)
}

func (m *MRA) fields(w *cmWire) {
	w.ids(&m.LocalCommID, &m.RemoteCommID)
	num(w, 8, 0, 2, &m.Message)
	num(w, 9, 0, 5, &m.ServiceTimeout)
	w.data(10, MRAPrivateData, &m.PrivateData)
}

func (m *REJ) fields(w *cmWire) {
	w.ids(&m.LocalCommID, &m.RemoteCommID)
	num(w, 8, 0, 2, &m.Message)
	num(w, 10, 0, 16, &m.Reason)
	w.info(9, 7, 12, REJInfo, &m.Info)
	w.data(84, REJPrivateData, &m.PrivateData)
}

func (m *REP) fields(w *cmWire) {
	w.ece(&m.ECEOptions)
	w.ids(&m.LocalCommID, &m.RemoteCommID)
	num(w, 8, 0, 32, &m.LocalQKey)
	num(w, 12, 0, 24, &m.LocalQPN)
	w.vendor(&m.VendorID, 15, 19, 23)
	num(w, 16, 0, 24, &m.LocalEECN)
	num(w, 20, 0, 24, &m.StartingPSN)
	num(w, 24, 0, 8, &m.ResponderResources)
	num(w, 25, 0, 8, &m.InitiatorDepth)
	num(w, 26, 0, 5, &m.TargetACKDelay)
	num(w, 26, 5, 2, &m.FailoverAccepted)
	w.flag(26, 7, &m.FlowControl)
	num(w, 27, 0, 3, &m.RNRRetryCount)
	w.flag(27, 3, &m.SRQ)
	num(w, 28, 0, 64, &m.LocalCAGUID)
	w.data(36, REPPrivateData, &m.PrivateData)
}

func (m *RTU) fields(w *cmWire) {
	w.ids(&m.LocalCommID, &m.RemoteCommID)
	w.data(8, RTUPrivateData, &m.PrivateData)
}

func (m *DREQ) fields(w *cmWire) {
	w.ids(&m.LocalCommID, &m.RemoteCommID)
	num(w, 8, 0, 24, &m.RemoteQPN)
	w.data(12, DREQPrivateData, &m.PrivateData)
}

func (m *DREP) fields(w *cmWire) {
	w.ids(&m.LocalCommID, &m.RemoteCommID)
	w.data(8, DREPPrivateData, &m.PrivateData)
}

func (m *SIDRREQ) fields(w *cmWire) {
	num(w, 0, 0, 32, &m.RequestID)
	num(w, 4, 0, 16, &m.PKey)
	num(w, 8, 0, 64, &m.ServiceID)
	w.data(16, SIDRREQPrivateData, &m.PrivateData)
}

func (m *SIDRREP) fields(w *cmWire) {
	w.ece(&m.ECEOptions)
	num(w, 0, 0, 32, &m.RequestID)
	num(w, 4, 0, 8, &m.Status)
	w.vendor(&m.VendorID, 6, 7, 11)
	num(w, 8, 0, 24, &m.QPN)
	num(w, 12, 0, 64, &m.ServiceID)
	num(w, 20, 0, 32, &m.QKey)
	w.info(5, 8, 24, SIDRREPInfo, &m.Info)
	w.data(96, SIDRREPPrivateData, &m.PrivateData)
}
