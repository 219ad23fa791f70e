//go:build linux

package connectx

import (
	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

// failureFields are the fields of QUERY_Q_COUNTER that count completions with errors.
var failureFields = [2]map[verbs.WCStatus]ifc.Field{
	failedRequests: {
		verbs.WCLocLenErr: ifc.QueryQCounterOutReqLocalLengthError, verbs.WCLocQPOpErr: ifc.QueryQCounterOutLocalOperationError,
		verbs.WCLocProtErr: ifc.QueryQCounterOutReqLocalProtection, verbs.WCFlushErr: ifc.QueryQCounterOutReqCqeFlushError,
		verbs.WCMWBindErr: ifc.QueryQCounterOutReqMwBinding, verbs.WCBadRespErr: ifc.QueryQCounterOutReqBadResponse,
		verbs.WCRemInvReqErr: ifc.QueryQCounterOutReqRemoteInvalidRequest, verbs.WCRemAccessErr: ifc.QueryQCounterOutReqRemoteAccessErrors,
		verbs.WCRemOpErr: ifc.QueryQCounterOutReqRemoteOperationErrors, verbs.WCRetryExcErr: ifc.QueryQCounterOutReqTransportRetriesExceeded,
		verbs.WCRNRRetryExcErr: ifc.QueryQCounterOutReqRnrRetriesExceeded,
	},
	failedReceives: {
		verbs.WCLocLenErr: ifc.QueryQCounterOutRespLocalLengthError, verbs.WCLocQPOpErr: ifc.QueryQCounterOutRespLocalQpError,
		verbs.WCLocProtErr: ifc.QueryQCounterOutRespLocalProtection, verbs.WCFlushErr: ifc.QueryQCounterOutRespCqeFlushError,
		verbs.WCRemInvReqErr: ifc.QueryQCounterOutRespRemoteInvalidRequest, verbs.WCRemAccessErr: ifc.QueryQCounterOutRespRemoteAccessErrors,
	},
}

// engineFields are the fields for counters of the engine.
var engineFields = map[string]ifc.Field{
	"write_requests": ifc.QueryQCounterOutRxWriteRequests, "read_requests": ifc.QueryQCounterOutRxReadRequests,
	"atomic_requests": ifc.QueryQCounterOutRxAtomicRequests, "duplicate_request": ifc.QueryQCounterOutDuplicateRequest,
	"out_of_seq_request": ifc.QueryQCounterOutOutOfSequence, "send_rnr_err": ifc.QueryQCounterOutOutOfBuffer,
	"rcvd_rnr_err": ifc.QueryQCounterOutRnrNakRetryErr, "rcvd_seq_err": ifc.QueryQCounterOutPacketSeqErr,
	"implied_naks": ifc.QueryQCounterOutImpliedNakSeqErr, "ack_timeouts": ifc.QueryQCounterOutLocalAckTimeoutErr,
}

// queryQCounter reports the adapter's counters, whatever the counter set.
func (d *Device) queryQCounter(c *call) ifc.Status {
	n := ifc.QueryQCounterInCounterSetId.U32(c.in)
	if !d.res.counters.Has(n) && n != 0 && !ifc.QueryQCounterInAggregate.Is(c.in) {
		return ifc.StatusBadResErr
	}
	// mlx5_ib's counters.c reads all of these for sysfs' hw_counters.
	for name, f := range engineFields {
		f.Set(c.out, d.t.counter(name))
	}
	for i, sum := range []ifc.Field{failedRequests: ifc.QueryQCounterOutReqCqeError, failedReceives: ifc.QueryQCounterOutRespCqeError} {
		var all uint64
		for status := range d.t.qps.failures[i] {
			n := d.t.qps.failures[i][status].Load()
			if f, ok := failureFields[i][verbs.WCStatus(status)]; ok {
				f.Set(c.out, n)
			}
			all += n
		}
		sum.Set(c.out, all)
	}
	for i, f := range []ifc.Field{ifc.QueryQCounterOutRespRemoteInvalidRequest, ifc.QueryQCounterOutRespRemoteAccessErrors} {
		f.Set(c.out, f.Get(c.out)+d.t.qps.refused[i].Load())
	}
	ifc.QueryQCounterOutCqOverflow.Set(c.out, d.t.cqs.overflows.Load())
	f := ifc.QueryQCounterOutOutOfBuffer
	f.Set(c.out, f.Get(c.out)+uint64(d.eth.noBuffer.Load())+d.t.counter("out_of_buffer"))
	return ifc.StatusOk
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

func (d *Device) queryVportCounter(c *call) ifc.Status {
	if ifc.QueryVportCounterInOtherVport.Is(c.in) {
		return ifc.StatusBadParamErr
	}
	set := func(f ifc.Field, packets, octets uint64) {
		ifc.TrafficCounterPackets.Set(f.At(c.out), packets)
		ifc.TrafficCounterOctets.Set(f.At(c.out), octets)
	}
	for i, f := range [][2]ifc.Field{
		{ifc.QueryVportCounterOutReceivedEthUnicast, ifc.QueryVportCounterOutTransmittedEthUnicast},
		{ifc.QueryVportCounterOutReceivedEthMulticast, ifc.QueryVportCounterOutTransmittedEthMulticast},
		{ifc.QueryVportCounterOutReceivedEthBroadcast, ifc.QueryVportCounterOutTransmittedEthBroadcast},
	} {
		set(f[0], d.eth.rx[i].packets.Load(), d.eth.rx[i].octets.Load())
		set(f[1], d.eth.tx[i].packets.Load(), d.eth.tx[i].octets.Load())
	}
	set(ifc.QueryVportCounterOutReceivedIbUnicast, d.t.counter("rcvd_pkts"), d.t.counter("rcvd_bytes"))
	set(ifc.QueryVportCounterOutTransmittedIbUnicast, d.t.counter("sent_pkts"), d.t.counter("sent_bytes"))
	return ifc.StatusOk
}

// Groups of the port's counters, MLX5_*_COUNTERS_GROUP of linux/mlx5/device.h.
const (
	group8023      = 0x00
	group2863      = 0x01
	group2819      = 0x02
	groupPriority  = 0x10
	groupIB        = 0x20
	groupIBExtends = 0x21
)

// portCounters fills in the counters of a group of register PPCNT. Counters of events that cannot
// happen here are zero, as are unknown groups: mlx5e's en_stats.c reads all groups for ethtool -S.
func (d *Device) portCounters(in, out []byte) {
	e := &d.eth
	rx, rxOctets := sumOf(e.rx[:])
	tx, txOctets := sumOf(e.tx[:])
	set := func(high ifc.Field, v uint64) { (high&^0xffff | 64).Set(out, v) } // the lower half follows
	switch ifc.PpcntRegGrp.Int(in) {
	case group8023:
		set(ifc.Eth8023CntrsGrpDataLayoutAFramesTransmittedOkHigh, tx)
		set(ifc.Eth8023CntrsGrpDataLayoutAFramesReceivedOkHigh, rx)
		set(ifc.Eth8023CntrsGrpDataLayoutAOctetsTransmittedOkHigh, txOctets)
		set(ifc.Eth8023CntrsGrpDataLayoutAOctetsReceivedOkHigh, rxOctets)
		set(ifc.Eth8023CntrsGrpDataLayoutAMulticastFramesXmittedOkHigh, e.tx[multicast].packets.Load())
		set(ifc.Eth8023CntrsGrpDataLayoutABroadcastFramesXmittedOkHigh, e.tx[broadcast].packets.Load())
		set(ifc.Eth8023CntrsGrpDataLayoutAMulticastFramesReceivedOkHigh, e.rx[multicast].packets.Load())
		set(ifc.Eth8023CntrsGrpDataLayoutABroadcastFramesReceivedOkHigh, e.rx[broadcast].packets.Load())
	case group2863:
		set(ifc.Eth2863CntrsGrpDataLayoutIfInOctetsHigh, rxOctets)
		set(ifc.Eth2863CntrsGrpDataLayoutIfInUcastPktsHigh, e.rx[unicast].packets.Load())
		set(ifc.Eth2863CntrsGrpDataLayoutIfInMulticastPktsHigh, e.rx[multicast].packets.Load())
		set(ifc.Eth2863CntrsGrpDataLayoutIfInBroadcastPktsHigh, e.rx[broadcast].packets.Load())
		set(ifc.Eth2863CntrsGrpDataLayoutIfInDiscardsHigh, uint64(e.noBuffer.Load())+uint64(e.discards.Load())+d.t.counter("rx_drops"))
		set(ifc.Eth2863CntrsGrpDataLayoutIfOutOctetsHigh, txOctets)
		set(ifc.Eth2863CntrsGrpDataLayoutIfOutUcastPktsHigh, e.tx[unicast].packets.Load())
		set(ifc.Eth2863CntrsGrpDataLayoutIfOutMulticastPktsHigh, e.tx[multicast].packets.Load())
		set(ifc.Eth2863CntrsGrpDataLayoutIfOutBroadcastPktsHigh, e.tx[broadcast].packets.Load())
	case group2819: // of received frames
		set(ifc.Eth2819CntrsGrpDataLayoutEtherStatsOctetsHigh, rxOctets)
		set(ifc.Eth2819CntrsGrpDataLayoutEtherStatsPktsHigh, rx)
		set(ifc.Eth2819CntrsGrpDataLayoutEtherStatsMulticastPktsHigh, e.rx[multicast].packets.Load())
		set(ifc.Eth2819CntrsGrpDataLayoutEtherStatsBroadcastPktsHigh, e.rx[broadcast].packets.Load())
		for i := range e.rx[0].sizes {
			var n uint64
			for c := range e.rx {
				n += e.rx[c].sizes[i].Load()
			}
			set(ifc.Eth2819CntrsGrpDataLayoutEtherStatsPkts64octetsHigh+ifc.Field(i)<<22, n)
		}
	case groupPriority:
		if ifc.PpcntRegPrioTc.Is(in) { // frames have no priority here
			break
		}
		set(ifc.EthPerPrioGrpDataLayoutRxOctetsHigh, rxOctets)
		set(ifc.EthPerPrioGrpDataLayoutRxFramesHigh, rx)
		set(ifc.EthPerPrioGrpDataLayoutTxOctetsHigh, txOctets)
		set(ifc.EthPerPrioGrpDataLayoutTxFramesHigh, tx)
	case groupIB:
		ifc.IbPortCntrsGrpDataLayoutLinkDownedCounter.Set(out, min(d.port.linkDowns(), 0xff))
	case groupIBExtends: // data in words of 4 bytes
		set(ifc.IbExtPortCntrsGrpDataLayoutPortXmitDataHigh, d.t.counter("sent_bytes")/4)
		set(ifc.IbExtPortCntrsGrpDataLayoutPortRcvDataHigh, d.t.counter("rcvd_bytes")/4)
		set(ifc.IbExtPortCntrsGrpDataLayoutPortXmitPktsHigh, d.t.counter("sent_pkts"))
		set(ifc.IbExtPortCntrsGrpDataLayoutPortUnicastXmitPktsHigh, d.t.counter("sent_pkts"))
		set(ifc.IbExtPortCntrsGrpDataLayoutPortRcvPktsHigh, d.t.counter("rcvd_pkts"))
		set(ifc.IbExtPortCntrsGrpDataLayoutPortUnicastRcvPktsHigh, d.t.counter("rcvd_pkts"))
	}
}
