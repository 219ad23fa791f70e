package uverbs

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/goverbs/verbs"
)

// Feature is something that only some kernel drivers have, see [Context.Probe].
type Feature string

// The features that this package has calls for. [Features] returns others, too.
const (
	FeatureRC              Feature = "RC"
	FeatureUC              Feature = "UC"
	FeatureUD              Feature = "UD"
	FeatureRawPacket       Feature = "raw packet QP"
	FeatureDriverQP        Feature = "driver QP"
	FeatureMWType1         Feature = "MW type 1"
	FeatureMWType2         Feature = "MW type 2"
	FeatureFlush           Feature = "FLUSH"
	FeaturePersistentFlush Feature = "persistent FLUSH"
	FeatureAtomicWrite     Feature = "ATOMIC_WRITE"
	FeatureInvalidate      Feature = "LOCAL_INV, SEND_WITH_INV"
	FeatureAtomics         Feature = "atomics"
	FeaturePKeys           Feature = "P_Keys"
	FeatureOnDemand        Feature = "on-demand paging"
	FeatureSRQ             Feature = "SRQ"
	FeatureSRQResize       Feature = "SRQ resize"
	FeatureAH              Feature = "address handles"
	FeatureMulticast       Feature = "multicast"
	FeatureCQResize        Feature = "CQ resize"
	FeatureCQModeration    Feature = "CQ moderation"
	FeatureReregAccess     Feature = "MR rereg, access"
	FeatureReregPD         Feature = "MR rereg, PD"
	FeatureReregMemory     Feature = "MR rereg, memory"
	FeatureIOVA            Feature = "MR IOVA"
	FeatureAdvice          Feature = "MR advice"
	FeatureDMABuf          Feature = "DMA-BUF MR"
)

// Features returns all features, sorted.
func Features() []Feature {
	return slices.Sorted(slices.Values(slices.AppendSeq(slices.Clone(uncalled), maps.Keys(probes))))
}

// Probe tests whether programs can use a feature, with objects of its own. The error matches
// errors.ErrUnsupported if the driver or this package lacks it.
func (c *Context) Probe(feature Feature) error {
	op := "probe " + string(feature)
	if err := c.obj.enter(op); err != nil {
		return err
	}
	c.obj.exit()
	probe, ok := probes[feature]
	switch {
	case slices.Contains(uncalled, feature):
		return c.obj.fail(op, fmt.Errorf("package uverbs does not support it: %w", errors.ErrUnsupported))
	case !ok:
		return c.obj.fail(op, fmt.Errorf("no such feature: %w", verbs.ErrRange))
	}
	p := prober{c: c}
	defer p.close()
	if err := p.run(probe); err != nil {
		return c.obj.fail(op, err)
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
