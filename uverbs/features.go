package uverbs

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/goverbs/verbs"
)

// Feature names a capability that only some kernel drivers have, see [Context.Probe].
type Feature string

// The features that this package has calls for. [Features] returns others, too.
const (
	FeatureRC              Feature = "RC"
	FeatureUC              Feature = "UC"
	FeatureUD              Feature = "UD"
	FeatureRawPacket       Feature = "raw packet QP"
	FeatureDC              Feature = "DC"
	FeatureMWType1         Feature = "MW type 1"
	FeatureMWType2         Feature = "MW type 2"
	FeatureFlush           Feature = "FLUSH"
	FeaturePersistentFlush Feature = "persistent FLUSH"
	FeatureAtomicWrite     Feature = "ATOMIC_WRITE"
	FeatureInvalidate      Feature = "LOCAL_INV, SEND_WITH_INV"
	FeatureAtomics         Feature = "atomics"
	FeatureImmediates      Feature = "immediates"
	FeaturePKeys           Feature = "P_Keys"
	FeatureOnDemand        Feature = "on-demand paging"
	FeatureSRQ             Feature = "SRQ"
	FeatureSRQResize       Feature = "SRQ resize"
	FeatureAH              Feature = "address handles"
	FeatureMulticast       Feature = "multicast"
	FeatureCQResize        Feature = "CQ resize"
	FeatureTimestamps      Feature = "CQ timestamps"
	FeatureClock           Feature = "device clock"
	FeatureCQModeration    Feature = "CQ moderation"
	FeatureReregAccess     Feature = "MR rereg, access"
	FeatureReregPD         Feature = "MR rereg, PD"
	FeatureReregMemory     Feature = "MR rereg, memory"
	FeatureIOVA            Feature = "MR IOVA"
	FeatureAdvice          Feature = "MR advice"
	FeatureDMABuf          Feature = "DMA-BUF MR"
	FeatureImport          Feature = "imported contexts"
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

// must returns v, or panics if err is not nil.
func must[T any](v T, err error) T {
	if err != nil {
		panic(setupError{err})
	}
	return v
}

// closing returns v, and closes it after the probe.
func closing[T io.Closer](p *prober, v T) T {
	p.closers = append(p.closers, v.Close)
	return v
}

func (p *prober) pd() *PD { return closing(p, must(p.c.AllocPD())) }
func (p *prober) cq() *CQ { return closing(p, must(p.c.CreateCQ(CQOptions{Depth: 1}))) }

func (p *prober) srq() *SRQ {
	return closing(p, must(p.pd().CreateSRQ(SRQOptions{MaxWR: 1, MaxSGE: 1})))
}

func (p *prober) qp(typ verbs.QPType) *QP {
	cq := p.cq()
	one := verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
	return closing(p, must(p.pd().CreateQP(QPOptions{Type: typ, SendCQ: cq, RecvCQ: cq, Cap: one})))
}

func (p *prober) mr(access verbs.Access, opt MROptions) *MR {
	return closing(p, must(p.pd().AllocMR(4096, access, opt)))
}
