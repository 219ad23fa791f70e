package uverbs

import (
	"fmt"
	"maps"
	"slices"

	"github.com/goverbs/verbs"
)

// Feature is a feature that some kernel drivers support and others do not.
// [Context.Probe] reports whether programs can use it.
type Feature string

// Features for [Context.Probe].
const (
	FeatureRC              Feature = "RC" // reliable connected QPs
	FeatureUC              Feature = "UC" // unreliable connected QPs
	FeatureUD              Feature = "UD" // datagram QPs
	FeatureRawPacketQP     Feature = "raw packet QP"
	FeatureDriverQP        Feature = "driver QP"
	FeatureMWType1         Feature = "MW type 1"
	FeatureMWType2         Feature = "MW type 2"
	FeatureFlush           Feature = "FLUSH"
	FeaturePersistentFlush Feature = "persistent FLUSH"
	FeatureAtomicWrite     Feature = "ATOMIC_WRITE"
	FeatureInvalidate      Feature = "LOCAL_INV, SEND_WITH_INV" // the opcodes that invalidate keys
	FeatureAtomics         Feature = "atomics"                  // compare-and-swap, fetch-and-add
	FeaturePKeys           Feature = "P_Keys"                   // a P_Key table
	FeatureOnDemandPaging  Feature = "on-demand paging"
	FeatureSRQ             Feature = "SRQ"
	FeatureSRQResize       Feature = "SRQ resize" // SRQ.Resize
	FeatureAddressHandles  Feature = "address handles"
	FeatureMulticast       Feature = "multicast"
	FeatureCQResize        Feature = "CQ resize"        // CQ.Resize
	FeatureCQModeration    Feature = "CQ moderation"    // CQ.Moderate
	FeatureReregAccess     Feature = "MR rereg, access" // MR.Rereg of access rights
	FeatureReregPD         Feature = "MR rereg, PD"     // MR.Rereg of the PD
	FeatureReregMemory     Feature = "MR rereg, memory" // MR.Rereg of the memory
	FeatureIOVA            Feature = "MR IOVA"          // MROptions.IOVA
	FeatureAdvice          Feature = "MR advice"        // PD.Advise
	FeatureDMABuf          Feature = "DMA-BUF MR"       // PD.RegisterDMABuf

	// For these there are no calls, and Probe refuses them on all devices.

	FeatureTagMatchingSRQ         Feature = "tag matching SRQ"
	FeatureCQTimestamps           Feature = "CQ timestamps"
	FeatureCQOverrun              Feature = "CQ ignoring overruns"
	FeatureDeviceClock            Feature = "device clock"
	FeatureImplicitOnDemandPaging Feature = "implicit on-demand paging"
	FeatureXRCDomain              Feature = "XRC domain"
	FeatureQPRateLimit            Feature = "QP rate limit"
	FeatureFlowActions            Feature = "flow actions"
	FeatureCompletionCounters     Feature = "completion counters"
	FeatureFlowSteering           Feature = "flow steering"
	FeatureWorkQueues             Feature = "work queues"
	FeatureReceiveIndirection     Feature = "receive indirection tables"
	FeatureDeviceMemory           Feature = "device memory"
	FeatureDMAHandles             Feature = "DMA handles"
	FeatureFlowCounters           Feature = "flow counters"
	FeaturePortSpeedQuery         Feature = "port speed query"
)

// Features returns all features, sorted.
func Features() []Feature { return slices.Sorted(maps.Keys(probes)) }

// Probe tests whether programs can use a feature of the device, by using it on objects of its own. It
// returns nil if they can, and otherwise an error, which matches errors.ErrUnsupported if the kernel's
// driver lacks the feature or this package does. It makes a few system calls.
func (c *Context) Probe(f Feature) error {
	probe, ok := probes[f]
	if !ok {
		return c.obj.fail("probe "+string(f), fmt.Errorf("no such feature: %w", verbs.ErrRange))
	}
	p := prober{c: c}
	defer p.close()
	if err := p.run(probe); err != nil {
		return c.obj.fail("probe "+string(f), err)
	}
	return nil
}

// prober makes the objects that a probe needs and closes them.
type prober struct {
	c       *Context
	closers []func() error
}

// setupError is the panic of a prober that fails to make an object.
type setupError struct{ error }

func (p *prober) run(probe func(*prober) error) (err error) {
	defer func() {
		switch m := recover().(type) {
		case nil:
		case setupError:
			err = m.error
		default:
			panic(m)
		}
	}()
	return probe(p)
}

func (p *prober) close() {
	for _, f := range slices.Backward(p.closers) {
		f()
	}
}

// mustCreate panics if err is not nil, and otherwise closes v after the probe.
func mustCreate[T interface{ Close() error }](p *prober, v T, err error) T {
	if err != nil {
		panic(setupError{err})
	}
	p.closers = append(p.closers, v.Close)
	return v
}

func (p *prober) pd() *PD {
	pd, err := p.c.AllocPD()
	return mustCreate(p, pd, err)
}

func (p *prober) cq() *CQ {
	cq, err := p.c.CreateCQ(CQOptions{Depth: 1})
	return mustCreate(p, cq, err)
}

func (p *prober) srq() *SRQ {
	srq, err := p.pd().CreateSRQ(SRQOptions{MaxWR: 1, MaxSGE: 1})
	return mustCreate(p, srq, err)
}

func (p *prober) qp(typ verbs.QPType) *QP {
	cq := p.cq()
	qp, err := p.pd().CreateQP(QPOptions{Type: typ, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
	return mustCreate(p, qp, err)
}

func (p *prober) mr(access verbs.Access, opt MROptions) *MR {
	mr, err := p.pd().AllocMR(4096, access, opt)
	return mustCreate(p, mr, err)
}
