//go:build linux

package connectx

import (
	"github.com/goverbs/verbs"
)

// failureFields are the counters of QUERY_Q_COUNTER for completions with errors.
var failureFields = [2]map[verbs.WCStatus]field{
	failedRequests: {
		verbs.WCLocLenErr: queryQCounterOutReqLocalLengthError, verbs.WCLocQPOpErr: queryQCounterOutLocalOperationError,
		verbs.WCLocProtErr: queryQCounterOutReqLocalProtection, verbs.WCFlushErr: queryQCounterOutReqCqeFlushError,
		verbs.WCMWBindErr: queryQCounterOutReqMwBinding, verbs.WCBadRespErr: queryQCounterOutReqBadResponse,
		verbs.WCRemInvReqErr: queryQCounterOutReqRemoteInvalidRequest, verbs.WCRemAccessErr: queryQCounterOutReqRemoteAccessErrors,
		verbs.WCRemOpErr: queryQCounterOutReqRemoteOperationErrors, verbs.WCRetryExcErr: queryQCounterOutReqTransportRetriesExceeded,
		verbs.WCRNRRetryExcErr: queryQCounterOutReqRnrRetriesExceeded,
	},
	failedReceives: {
		verbs.WCLocLenErr: queryQCounterOutRespLocalLengthError, verbs.WCLocQPOpErr: queryQCounterOutRespLocalQpError,
		verbs.WCLocProtErr: queryQCounterOutRespLocalProtection, verbs.WCFlushErr: queryQCounterOutRespCqeFlushError,
		verbs.WCRemInvReqErr: queryQCounterOutRespRemoteInvalidRequest, verbs.WCRemAccessErr: queryQCounterOutRespRemoteAccessErrors,
	},
}

// engineFields are those that the engine counts.
var engineFields = map[string]field{
	"write_requests": queryQCounterOutRxWriteRequests, "read_requests": queryQCounterOutRxReadRequests,
	"atomic_requests": queryQCounterOutRxAtomicRequests, "duplicate_request": queryQCounterOutDuplicateRequest,
	"out_of_seq_request": queryQCounterOutOutOfSequence, "send_rnr_err": queryQCounterOutOutOfBuffer,
	"rcvd_rnr_err": queryQCounterOutRnrNakRetryErr, "rcvd_seq_err": queryQCounterOutPacketSeqErr,
	"implied_naks": queryQCounterOutImpliedNakSeqErr, "ack_timeouts": queryQCounterOutLocalAckTimeoutErr,
}

// queryQCounter answers for all counter sets alike: those of the adapter.
func (d *Device) queryQCounter(c *call) status {
	n := queryQCounterInCounterSetId.u32(c.in)
	if !d.res.counters.has(n) && n != 0 && !queryQCounterInAggregate.is(c.in) {
		return statusBadResErr
	}
	for name, f := range engineFields {
		f.set(c.out, d.t.counter(name))
	}
	for side, of := range failureFields {
		var all uint64
		for status := range d.t.qps.failures[side] {
			n := d.t.qps.failures[side][status].Load()
			if f, ok := of[verbs.WCStatus(status)]; ok {
				f.set(c.out, n)
			}
			all += n
		}
		[2]field{queryQCounterOutReqCqeError, queryQCounterOutRespCqeError}[side].set(c.out, all)
	}
	for i, f := range []field{queryQCounterOutRespRemoteInvalidRequest, queryQCounterOutRespRemoteAccessErrors} {
		f.set(c.out, f.get(c.out)+d.t.qps.refused[i].Load())
	}
	queryQCounterOutCqOverflow.set(c.out, d.t.cqs.overflows.Load())
	f := queryQCounterOutOutOfBuffer
	f.set(c.out, f.get(c.out)+uint64(d.eth.noBuffer.Load())+d.t.counter("out_of_buffer"))
	return statusOk
}

// counter returns a counter of the engine.
func (t *transport) counter(name string) uint64 {
	for _, c := range t.eng.ModelCounters() {
		if c.Name == name {
			return c.Value
		}
	}
	return 0
}

func (d *Device) queryVportCounter(c *call) status {
	if queryVportCounterInOtherVport.is(c.in) {
		return statusBadParamErr
	}
	set := func(f field, packets, octets uint64) {
		trafficCounterPackets.set(f.at(c.out), packets)
		trafficCounterOctets.set(f.at(c.out), octets)
	}
	for i, f := range [][2]field{
		{queryVportCounterOutReceivedEthUnicast, queryVportCounterOutTransmittedEthUnicast},
		{queryVportCounterOutReceivedEthMulticast, queryVportCounterOutTransmittedEthMulticast},
		{queryVportCounterOutReceivedEthBroadcast, queryVportCounterOutTransmittedEthBroadcast},
	} {
		set(f[0], d.eth.rx[i].packets.Load(), d.eth.rx[i].octets.Load())
		set(f[1], d.eth.tx[i].packets.Load(), d.eth.tx[i].octets.Load())
	}
	set(queryVportCounterOutReceivedIbUnicast, d.t.counter("rcvd_pkts"), d.t.counter("rcvd_bytes"))
	set(queryVportCounterOutTransmittedIbUnicast, d.t.counter("sent_pkts"), d.t.counter("sent_bytes"))
	return statusOk
}

// Groups of the port's counters, MLX5_*_COUNTERS_GROUP.
const (
	group8023      = 0x00
	group2863      = 0x01
	group2819      = 0x02
	groupPriority  = 0x10
	groupIB        = 0x20
	groupIBExtends = 0x21
)

// portCounters fills in the counters of a group of register PPCNT. Those that the adapter has no
// events for are zero, as are groups that it does not know.
func (d *Device) portCounters(in, out []byte) {
	e := &d.eth
	rx, rxOctets := sumOf(e.rx[:])
	tx, txOctets := sumOf(e.tx[:])
	set := func(high field, v uint64) { (high&^0xffff | 64).set(out, v) } // the field of its lower half follows
	switch ppcntRegGrp.int(in) {
	case group8023:
		set(eth8023CntrsGrpDataLayoutAFramesTransmittedOkHigh, tx)
		set(eth8023CntrsGrpDataLayoutAFramesReceivedOkHigh, rx)
		set(eth8023CntrsGrpDataLayoutAOctetsTransmittedOkHigh, txOctets)
		set(eth8023CntrsGrpDataLayoutAOctetsReceivedOkHigh, rxOctets)
		set(eth8023CntrsGrpDataLayoutAMulticastFramesXmittedOkHigh, e.tx[multicast].packets.Load())
		set(eth8023CntrsGrpDataLayoutABroadcastFramesXmittedOkHigh, e.tx[broadcast].packets.Load())
		set(eth8023CntrsGrpDataLayoutAMulticastFramesReceivedOkHigh, e.rx[multicast].packets.Load())
		set(eth8023CntrsGrpDataLayoutABroadcastFramesReceivedOkHigh, e.rx[broadcast].packets.Load())
	case group2863:
		set(eth2863CntrsGrpDataLayoutIfInOctetsHigh, rxOctets)
		set(eth2863CntrsGrpDataLayoutIfInUcastPktsHigh, e.rx[unicast].packets.Load())
		set(eth2863CntrsGrpDataLayoutIfInMulticastPktsHigh, e.rx[multicast].packets.Load())
		set(eth2863CntrsGrpDataLayoutIfInBroadcastPktsHigh, e.rx[broadcast].packets.Load())
		set(eth2863CntrsGrpDataLayoutIfInDiscardsHigh, uint64(e.noBuffer.Load())+uint64(e.discards.Load())+d.t.counter("rx_drops"))
		set(eth2863CntrsGrpDataLayoutIfOutOctetsHigh, txOctets)
		set(eth2863CntrsGrpDataLayoutIfOutUcastPktsHigh, e.tx[unicast].packets.Load())
		set(eth2863CntrsGrpDataLayoutIfOutMulticastPktsHigh, e.tx[multicast].packets.Load())
		set(eth2863CntrsGrpDataLayoutIfOutBroadcastPktsHigh, e.tx[broadcast].packets.Load())
	case group2819: // of what has been received
		set(eth2819CntrsGrpDataLayoutEtherStatsOctetsHigh, rxOctets)
		set(eth2819CntrsGrpDataLayoutEtherStatsPktsHigh, rx)
		set(eth2819CntrsGrpDataLayoutEtherStatsMulticastPktsHigh, e.rx[multicast].packets.Load())
		set(eth2819CntrsGrpDataLayoutEtherStatsBroadcastPktsHigh, e.rx[broadcast].packets.Load())
		for i := range e.rx[0].sizes {
			var n uint64
			for c := range e.rx {
				n += e.rx[c].sizes[i].Load()
			}
			set(eth2819CntrsGrpDataLayoutEtherStatsPkts64octetsHigh+field(i)<<22, n)
		}
	case groupPriority:
		if ppcntRegPrioTc.is(in) { // frames have no priority here
			break
		}
		set(ethPerPrioGrpDataLayoutRxOctetsHigh, rxOctets)
		set(ethPerPrioGrpDataLayoutRxFramesHigh, rx)
		set(ethPerPrioGrpDataLayoutTxOctetsHigh, txOctets)
		set(ethPerPrioGrpDataLayoutTxFramesHigh, tx)
	case groupIB:
		ibPortCntrsGrpDataLayoutLinkDownedCounter.set(out, min(d.port.linkDowns(), 0xff))
	case groupIBExtends: // data in words of 4 bytes
		set(ibExtPortCntrsGrpDataLayoutPortXmitDataHigh, d.t.counter("sent_bytes")/4)
		set(ibExtPortCntrsGrpDataLayoutPortRcvDataHigh, d.t.counter("rcvd_bytes")/4)
		for _, f := range []field{ibExtPortCntrsGrpDataLayoutPortXmitPktsHigh, ibExtPortCntrsGrpDataLayoutPortUnicastXmitPktsHigh} {
			set(f, d.t.counter("sent_pkts"))
		}
		for _, f := range []field{ibExtPortCntrsGrpDataLayoutPortRcvPktsHigh, ibExtPortCntrsGrpDataLayoutPortUnicastRcvPktsHigh} {
			set(f, d.t.counter("rcvd_pkts"))
		}
	}
}
