package uverbs

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/host"
)

// checkAttr refuses attributes in mask that no device takes. The kernel says EINVAL without naming
// the attribute, or takes the value, and its driver cuts it to the bits that the packet has for it.
func (q *QP) checkAttr(a *verbs.QPAttr, mask verbs.QPAttrMask) error {
	ctx := q.pd.ctx
	pkeys := ctx.dev.Port.PKeys
	if ctx.device.iwarp || pkeys == 0 { // iWARP has no P_Keys, and ignores the index
		pkeys = 1 << 16
	}
	for _, field := range []struct {
		mask            verbs.QPAttrMask
		name            string
		value, min, max int
	}{
		{verbs.MaskPort, "Port", int(a.Port), 1, ctx.device.ports},
		{verbs.MaskPKeyIndex, "PKeyIndex", int(a.PKeyIndex), 0, pkeys - 1},
		{verbs.MaskAV, "AV.Port", int(a.AV.Port), 1, ctx.device.ports},
		{verbs.MaskPathMTU, "PathMTU", int(a.PathMTU), int(verbs.MTU256), int(verbs.MTU4096)},
		{verbs.MaskTimeout, "Timeout", int(a.Timeout), 0, 31},
		{verbs.MaskRetryCount, "RetryCount", int(a.RetryCount), 0, 7},
		{verbs.MaskRNRRetry, "RNRRetry", int(a.RNRRetry), 0, 7},
		{verbs.MaskMinRNRTimer, "MinRNRTimer", int(a.MinRNRTimer), 0, 31},
		{verbs.MaskAltPath, "AltPort", int(a.AltPort), 1, ctx.device.ports},
		{verbs.MaskAltPath, "AltTimeout", int(a.AltTimeout), 0, 31},
	} {
		if mask&field.mask != 0 && (field.value < field.min || field.value > field.max) {
			return rangeError(field.name, field.value, field.min, field.max)
		}
	}
	return nil
}

// rangeError returns the error of a field out of its range. It also matches EINVAL, as the
// kernel's.
func rangeError(name string, value, min, max int) error {
	return fmt.Errorf("%s %d: %w: %d to %d: %w", name, value, verbs.ErrRange, min, max, syscall.EINVAL)
}

// explainVector adds the fault of an address vector, if it finds one, to the kernel's error.
func (c *Context) explainVector(av *verbs.AddressVector, err error) error {
	if !errors.Is(err, syscall.EINVAL) && !errors.Is(err, host.ENODATA) && !errors.Is(err, syscall.ENOENT) {
		return wrapNoRoute(av, err)
	}
	if port := int(av.Port); port < 1 || port > c.device.ports {
		return rangeError("Port", port, 1, c.device.ports)
	}
	roce := c.dev.Port.LinkLayer == verbs.LinkEthernet && !c.device.iwarp
	if !av.Global {
		if roce {
			err = fmt.Errorf("RoCE needs Global, DGID and SGIDIndex: %w", err)
		}
		return err
	}
	local, qerr := c.QueryGID(int(av.Port), int(av.SGIDIndex))
	switch {
	case qerr != nil || local.GID == (verbs.GID{}):
		return fmt.Errorf("no GID %d (SGIDIndex) on port %d, see Context.GIDTable: %w", av.SGIDIndex, av.Port, err)
	case av.DGID == (verbs.GID{}):
		return fmt.Errorf("DGID is zero: %w", err)
	case roce:
		return fmt.Errorf("%w%s", err, familiesOf(local.GID, av.DGID))
	}
	return err
}
