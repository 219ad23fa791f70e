//go:build linux

package connectx

import (
	"bytes"
	"sync"
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/lab/internal/pcidev"
	"github.com/goverbs/verbs/lab/vfiouser"
)

var mkeyCommands = map[uint16]func(*keyTable, *call) ifc.Status{
	ifc.OpCreateMkey:  (*keyTable).create,
	ifc.OpDestroyMkey: drop((*keyTable).table, ifc.DestroyMkeyInMkeyIndex, (*mkey).destroy),
	ifc.OpQueryMkey:   on((*keyTable).table, ifc.QueryMkeyInMkeyIndex, (*mkey).query),
}

// keyTable has the memory keys.
type keyTable struct {
	env *env
	pds *objects[*engine.PD]
	objects[*mkey]

	xlt   atomic.Int64    // bytes of translation entries
	guest pcidev.Physical // for physical keys
}

func (t *keyTable) reset() {
	t.clear((*mkey).destroy)
	t.guest.Unmap()
}

// mkey is a memory key. The L_Key and R_Key that name it are its number and, in the lowest byte, a
// variant that the driver chooses (mkey_7_0). A free mkey grants nothing until a UMR request
// configures it. Its lock is taken with the lock of a QP held, and is held while the engine's region
// is registered and deregistered.
type mkey struct {
	t     *keyTable
	index uint32

	mu      sync.Mutex
	context []byte // struct mkc
	xlt     []byte // translation entries: addresses of pages (MTT), or parts of other keys (KLM)
	flagged bool   // the addresses of pages have flags: see pageRead
	gone    bool   // destroyed

	mr   *engine.MR     // nil if the key is free
	view *vfiouser.View // of its pages, or nil
	base uint64         // offset of the view in the pages
}

// Flags of the address of a page, MLX5_IB_MTT_READ and MLX5_IB_MTT_WRITE: what the guest has made the page
// present for. Those of a page that it has not found yet, or has taken back, are 0 (odp.c, populate_mtt).
const (
	pageRead    = 1 << 0
	pageWrite   = 1 << 1
	pagePresent = pageRead | pageWrite
)

const (
	minMkey = 8       // smaller numbers are the special keys': see querySpecialContexts
	maxMkey = 1 << 20 // log_max_mkey

	physicalSize = pcidev.PhysicalSize

	octoword = 16      // unit of translation entries
	maxXLT   = 1 << 27 // bytes of all translation entries, enough for 64 GiB in small pages
)

// rights maps the flags of a context to the access that they grant.
type rights map[ifc.Field]verbs.Access

var mkeyRights = rights{
	ifc.MkcLw: verbs.AccessLocalWrite, ifc.MkcRw: verbs.AccessRemoteWrite, ifc.MkcRr: verbs.AccessRemoteRead, ifc.MkcA: verbs.AccessRemoteAtomic,
}

func (r rights) of(ctx []byte) (a verbs.Access) {
	for f, granted := range r {
		if f.Is(ctx) {
			a |= granted
		}
	}
	return a
}

func (t *keyTable) create(c *call) ifc.Status {
	ctx := bytes.Clone(ifc.CreateMkeyInMemoryKeyMkeyEntry.At(c.in))
	list, octwords := ifc.CreateMkeyInKlmPasMtt.At(c.in), ifc.CreateMkeyInTranslationsOctwordActualSize.Int(c.in)
	switch {
	case ifc.CreateMkeyInMkeyUmemValid.Is(c.in), ifc.MkcBsfEn.Is(ctx), mkeyMode(ctx) > ifc.MkcModeKsm:
		return ifc.StatusBadParamErr
	case octwords > len(list)/octoword:
		return ifc.StatusBadInpLenErr
	}
	k := &mkey{t: t, context: ctx, flagged: ifc.CreateMkeyInPgAccess.Is(c.in)}
	k.mu.Lock() // a UMR request may guess the number
	defer k.mu.Unlock()
	if !k.grow(octwords * octoword) {
		return ifc.StatusNoResErr
	}
	copy(k.xlt, list)
	var st ifc.Status
	if k.index, st = t.give(k, minMkey, maxMkey-1, c, ifc.CreateMkeyOutMkeyIndex); st == ifc.StatusOk && !ifc.MkcFree.Is(ctx) {
		if st = k.enable(); st != ifc.StatusOk {
			t.Remove(k.index)
		}
	}
	if st != ifc.StatusOk {
		k.end()
	}
	return st
}

func mkeyMode(ctx []byte) int { return ifc.MkcAccessMode10.Int(ctx) | ifc.MkcAccessMode42.Int(ctx)<<2 }

// grow makes room for translation entries. It reports false if all keys have too many.
func (k *mkey) grow(size int) bool {
	more := int64(size - len(k.xlt))
	if more <= 0 {
		return true
	}
	if k.t.xlt.Add(more) > maxXLT {
		k.t.xlt.Add(-more)
		return false
	}
	k.xlt = append(k.xlt, make([]byte, more)...)
	return true
}

// enable registers a key's memory with the engine.
func (k *mkey) enable() ifc.Status {
	t, ctx := k.t, k.context
	pd, ok := t.pds.Get(ifc.MkcPd.U32(ctx))
	if !ok {
		return ifc.StatusBadResErr
	}
	key, access := k.index<<8|ifc.MkcMkey70.U32(ctx), mkeyRights.of(ctx)
	start, length := ifc.MkcStartAddr.Get(ctx), ifc.MkcLen.Get(ctx)
	var mem []byte
	var paged bool
	var err error
	switch mkeyMode(ctx) {
	// Physical addresses: only the kernel's own keys have this mode (mlx5_ib_get_dma_mr,
	// mlx5e_create_mkey). With length64 they reach all memory.
	case ifc.MkcModePa:
		if mem, err = t.guest.Bytes(t.env.mem); err != nil {
			return ifc.StatusNoResErr
		}
		if ifc.MkcLength64.Is(ctx) {
			start = 0
			break
		}
		if start > uint64(len(mem)) || length > uint64(len(mem))-start {
			return ifc.StatusBadParamErr
		}
		mem = mem[start : start+length]
	// A list of pages of one size: memory regions of programs (mlx5_ib's reg_create).
	case ifc.MkcModeMtt:
		if ifc.MkcLength64.Is(ctx) { // all pages (mlx5r_umr_final_update_xlt)
			length = uint64(len(k.xlt)/8) << ifc.MkcLogPageSize.Int(ctx)
		}
		if length == 0 && len(k.xlt) == 0 {
			break
		}
		var st ifc.Status
		if mem, paged, st = k.mapPages(start, length); st != ifc.StatusOk {
			return st
		}
	// Parts of other keys: memory windows (mlx5_ib_alloc_mw) and, of one size, regions of all memory
	// (mlx5_ib_alloc_implicit_mr), most of whose parts have no key.
	case ifc.MkcModeKlms, ifc.MkcModeKsm:
		if ifc.MkcLength64.Is(ctx) {
			length = k.size()
		}
		parts, ok := k.parts(length)
		if !ok {
			return ifc.StatusBadParamErr
		}
		only := ifc.MkcQpn.U32(ctx)
		if only == anyQP {
			only = 0
		}
		if k.mr, err = pd.RegisterParts(key, parts, start, access, only); err != nil {
			return ifc.StatusBadParamErr
		}
		if mkeyMode(ctx) == ifc.MkcModeKsm {
			k.mr.Paged()
		}
		return ifc.StatusOk
	default:
		return ifc.StatusBadParamErr
	}
	if k.mr, err = pd.RegisterKey(key, mem, start, access); err != nil {
		k.disable()
		return ifc.StatusBadParamErr
	}
	if paged {
		k.mr.Paged()
	}
	return ifc.StatusOk
}

const anyQP = 0xffffff // mkc.qpn: no QP in particular (mlx5_ib's set_mkc_access_pd_addr_fields)

// disable deregisters the region. After it, nobody uses the key's memory.
func (k *mkey) disable() {
	if k.mr != nil {
		k.mr.Destroy()
	}
	if k.view != nil {
		k.view.Close()
	}
	k.mr, k.view = nil, nil
}

// end releases the resources of a key that is no longer in the table.
func (k *mkey) end() {
	k.disable()
	k.gone = true
	k.t.xlt.Add(-int64(len(k.xlt)))
	k.xlt = nil
}

func (k *mkey) destroy() ifc.Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.end()
	return ifc.StatusOk
}

func (k *mkey) query(c *call) ifc.Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	copy(ifc.QueryMkeyOutMemoryKeyMkeyEntry.At(c.out), k.context)
	// The driver asks which regions a memory window is of, as it may have to bring their pages.
	if mkeyMode(k.context) == ifc.MkcModeKlms {
		copy(c.out[ifc.QueryMkeyOutBsf0Klm0PasMtt01.Off()/8:], k.xlt)
	}
	return ifc.StatusOk
}

// parts returns the parts of a key of keys, up to its length: each entry is a struct mlx5_klm.
func (k *mkey) parts(length uint64) (list []engine.Part, ok bool) {
	most := octoword << logMaxKLMs
	if mkeyMode(k.context) == ifc.MkcModeKsm {
		most = maxXLT
	}
	for b := k.xlt[:min(len(k.xlt), most)]; length > 0; b = b[octoword:] {
		if len(b) < octoword || k.partSize(b) == 0 {
			return nil, false
		}
		n := min(k.partSize(b), length)
		list = append(list, engine.Part{Key: be.Uint32(b[4:]), Addr: be.Uint64(b[8:]), Length: n})
		length -= n
	}
	return list, true
}

// size returns the sum of the lengths of a key's parts.
func (k *mkey) size() (n uint64) {
	for b := k.xlt; len(b) >= octoword; b = b[octoword:] {
		if n += k.partSize(b); n >= 1<<63 {
			return 1 << 63 // a guest's nonsense: no sum of 64 bits
		}
	}
	return n
}

// partSize returns the length of the part in an entry. All parts of a KSM have that of the key's
// pages: Linux 7.3 has parts of more bytes than the entry could say (odp.c, mlx5_imr_mtt_shift).
func (k *mkey) partSize(entry []byte) uint64 {
	if mkeyMode(k.context) == ifc.MkcModeKsm {
		return 1 << ifc.MkcLogPageSize.Int(k.context)
	}
	return uint64(be.Uint32(entry))
}

// change replaces entries of a key in use, as the driver does when pages come and go. No access fails
// because of it. It does nothing and reports done false for keys that have to be enabled again.
func (k *mkey) change(offset int, list []byte) (done, ok bool) {
	mode := mkeyMode(k.context)
	switch {
	case mode == ifc.MkcModeKsm: // the lengths of its parts do not change
	case mode != ifc.MkcModeMtt || k.view == nil:
		return false, true
	}
	ok = true
	k.mr.Change(func(parts []engine.Part) {
		copy(k.xlt[offset:], list)
		if mode == ifc.MkcModeKsm {
			for i := offset / octoword; i < min((offset+len(list))/octoword, len(parts)); i++ {
				b := k.xlt[i*octoword:]
				parts[i].Key, parts[i].Addr = be.Uint32(b[4:]), be.Uint64(b[8:])
			}
			return
		}
		ok = k.place(offset/8, (offset+len(list))/8) == nil
	})
	k.mr.Paged()
	return true, ok
}

// partial reports whether some of a key's first n pages are not present.
func (k *mkey) partial(n uint64) bool {
	for i := range min(n, uint64(len(k.xlt))/8) {
		if k.flagged && be.Uint64(k.xlt[i*8:])&pagePresent != pagePresent {
			return true
		}
	}
	return false
}

// place maps the pages that entries from first to end name into the view, in place of those that are
// there. Others are missing.
func (k *mkey) place(first, end int) error {
	size, shift := uint64(len(k.view.Bytes())), ifc.MkcLogPageSize.Int(k.context)
	entry := func(i int) uint64 {
		e := be.Uint64(k.xlt[i*8:])
		if e&pageRead == 0 {
			return 0
		}
		return e
	}
	for i := first; i < end; {
		// A run of pages takes one mapping.
		e, j := entry(i), i+1
		for ; j < end; j++ {
			if next := entry(j); e == 0 && next != 0 || e != 0 && next != e+uint64(j-i)<<shift {
				break
			}
		}
		from, to := max(uint64(i)<<shift, k.base), min(uint64(j)<<shift, k.base+size)
		if from < to {
			k.view.Unmap(from-k.base, to-from)
			if e != 0 {
				addr := e&^pagePresent + from - uint64(i)<<shift
				if err := k.view.Map(from-k.base, addr, to-from, e&pageWrite == 0); err != nil {
					return err
				}
			}
		}
		i = j
	}
	return nil
}

// mapPages maps the memory of a key. paged reports whether pages are missing.
func (k *mkey) mapPages(start, length uint64) (mem []byte, paged bool, st ifc.Status) {
	shift := ifc.MkcLogPageSize.Int(k.context)
	if shift < 12 || shift > 40 || length == 0 || start+length < start || length > 1<<42 {
		return nil, false, ifc.StatusBadParamErr
	}
	off := start & (1<<shift - 1)
	n := (off + length + 1<<shift - 1) >> shift
	if k.partial(n) {
		if n > uint64(len(k.xlt))/8 {
			return nil, false, ifc.StatusBadInpLenErr
		}
		base, end := pcidev.Around(off, length)
		v, err := k.t.env.mem.Sparse(end - base)
		if err != nil {
			return nil, false, ifc.StatusBadParamErr
		}
		k.view, k.base = v, base
		if k.place(0, int(n)) != nil {
			k.disable()
			return nil, false, ifc.StatusBadParamErr
		}
		return v.Bytes()[off-base:][:length], true, ifc.StatusOk
	}
	addrs, st := pageAddrs(k.xlt, n, shift, pagePresent) // the key's rights decide
	if st != ifc.StatusOk {
		return nil, false, st
	}
	var err error
	if k.view, mem, k.base, err = pcidev.Map(k.t.env.mem, addrs, 1<<shift, off, length); err != nil {
		return nil, false, ifc.StatusBadParamErr
	}
	return mem, false, ifc.StatusOk
}

const anyPD = 1<<32 - 1

// physical reports whether a key reaches all memory by physical addresses in a PD. Queues of the
// network function, and UMR requests, read the guest's memory by such keys without the engine.
func (t *keyTable) physical(key, pd uint32, write bool) bool {
	k, ok := t.Get(key >> 8)
	if !ok {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.context
	return !ifc.MkcFree.Is(c) && mkeyMode(c) == ifc.MkcModePa && ifc.MkcMkey70.U32(c) == key&0xff && (pd == anyPD || ifc.MkcPd.U32(c) == pd) &&
		ifc.MkcLength64.Is(c) && (!write || ifc.MkcLw.Is(c))
}
