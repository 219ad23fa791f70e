//go:build linux

package connectx

import (
	"bytes"
	"sync"
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/lab/vfiouser"
)

func mkeys(t *keyTable) *objects[*mkey] { return &t.objects }

var mkeyCommands = map[uint16]func(*keyTable, *call) status{
	opCreateMkey:  (*keyTable).create,
	opDestroyMkey: drop(mkeys, destroyMkeyInMkeyIndex, (*mkey).destroy),
	opQueryMkey:   on(mkeys, queryMkeyInMkeyIndex, (*mkey).query),
}

// keyTable has the memory keys.
type keyTable struct {
	env *env
	pds *objects[*engine.PD]
	objects[*mkey]

	xlt     atomic.Int64 // bytes of translation entries
	guestMu sync.Mutex
	guest   *vfiouser.View // all memory of the guest, for physical keys; made when needed
}

func (t *keyTable) reset() {
	t.clear((*mkey).destroy)
	if t.guest != nil {
		t.guest.Close()
		t.guest = nil
	}
}

// mkey is a memory key. One that is free grants nothing: UMR requests configure it. Its lock is taken
// with that of a QP held, and is held while the engine's regions are made and ended.
type mkey struct {
	t     *keyTable
	index uint32

	mu      sync.Mutex
	context []byte // struct mkc
	xlt     []byte // translation entries: addresses of pages (MTT), or parts of other keys (KLM)
	gone    bool   // destroyed

	mr   *engine.MR     // nil if the key is free
	view *vfiouser.View // of its pages
}

const (
	minMkey = 8       // below are those of querySpecialContexts
	maxMkey = 1 << 20 // log_max_mkey

	physicalSize = 1 << 40 // of guests' memory that physical keys reach

	octoword = 16      // unit of translation entries
	maxXLT   = 1 << 27 // bytes of all translation entries: of 64 GiB in small pages
)

// rights are the flags of a context that grant access.
type rights map[field]verbs.Access

var mkeyRights = rights{
	mkcLw: verbs.AccessLocalWrite, mkcRw: verbs.AccessRemoteWrite, mkcRr: verbs.AccessRemoteRead, mkcA: verbs.AccessRemoteAtomic,
}

func (r rights) of(ctx []byte) (a verbs.Access) {
	for f, granted := range r {
		if f.is(ctx) {
			a |= granted
		}
	}
	return a
}

func (t *keyTable) create(c *call) status {
	ctx := bytes.Clone(createMkeyInMemoryKeyMkeyEntry.at(c.in))
	list, octwords := createMkeyInKlmPasMtt.at(c.in), createMkeyInTranslationsOctwordActualSize.int(c.in)
	switch {
	case createMkeyInMkeyUmemValid.is(c.in), createMkeyInPgAccess.is(c.in), mkcBsfEn.is(ctx), mkeyMode(ctx) > mkcModeKsm:
		return statusBadParamErr
	case octwords > len(list)/octoword:
		return statusBadInpLenErr
	}
	k := &mkey{t: t, context: ctx}
	k.mu.Lock() // a request may guess the number
	defer k.mu.Unlock()
	if !k.grow(octwords * octoword) {
		return statusNoResErr
	}
	copy(k.xlt, list)
	var st status
	if k.index, st = t.give(k, minMkey, maxMkey-1, c, createMkeyOutMkeyIndex); st == statusOk && !mkcFree.is(ctx) {
		if st = k.enable(); st != statusOk {
			t.remove(k.index)
		}
	}
	if st != statusOk {
		k.end()
	}
	return st
}

func mkeyMode(ctx []byte) int { return mkcAccessMode10.int(ctx) | mkcAccessMode42.int(ctx)<<2 }

// grow makes room for translation entries.
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

// enable makes the engine's region of a key.
func (k *mkey) enable() status {
	t, ctx := k.t, k.context
	pd, ok := t.pds.get(mkcPd.u32(ctx))
	if !ok {
		return statusBadResErr
	}
	key, access := k.index<<8|mkcMkey70.u32(ctx), mkeyRights.of(ctx)
	start, length := mkcStartAddr.get(ctx), mkcLen.get(ctx)
	var mem []byte
	var err error
	switch mkeyMode(ctx) {
	case mkcModePa:
		if mem, err = t.physicalMemory(); err != nil {
			return statusNoResErr
		}
		if mkcLength64.is(ctx) {
			start = 0
			break
		}
		if start > uint64(len(mem)) || length > uint64(len(mem))-start {
			return statusBadParamErr
		}
		mem = mem[start : start+length]
	case mkcModeMtt:
		if length == 0 && len(k.xlt) == 0 {
			break
		}
		var st status
		if mem, st = k.mapPages(start, length); st != statusOk {
			return st
		}
	case mkcModeKlms:
		parts, ok := k.parts(length)
		if !ok {
			return statusBadParamErr
		}
		only := mkcQpn.u32(ctx)
		if only == anyQP {
			only = 0
		}
		if k.mr, err = pd.RegisterParts(key, parts, start, access, only); err != nil {
			return statusBadParamErr
		}
		return statusOk
	default:
		return statusBadParamErr
	}
	if k.mr, err = pd.RegisterKey(key, mem, start, access); err != nil {
		k.disable()
		return statusBadParamErr
	}
	return statusOk
}

const anyQP = 0xffffff // mkc.qpn

// disable ends the region. When it has returned, nobody uses the key.
func (k *mkey) disable() {
	if k.mr != nil {
		k.mr.Dereg()
	}
	if k.view != nil {
		k.view.Close()
	}
	k.mr, k.view = nil, nil
}

// end ends a key that commands do not find any more.
func (k *mkey) end() {
	k.disable()
	k.gone = true
	k.t.xlt.Add(-int64(len(k.xlt)))
	k.xlt = nil
}

func (k *mkey) destroy() status {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.end()
	return statusOk
}

func (k *mkey) query(c *call) status {
	k.mu.Lock()
	defer k.mu.Unlock()
	copy(queryMkeyOutMemoryKeyMkeyEntry.at(c.out), k.context)
	return statusOk
}

// parts returns what the entries of a key of keys name (struct mlx5_klm), up to its length.
func (k *mkey) parts(length uint64) (list []engine.Part, ok bool) {
	for b := k.xlt[:min(len(k.xlt), octoword<<logMaxKLMs)]; length > 0; b = b[octoword:] {
		if len(b) < octoword || be.Uint32(b) == 0 {
			return nil, false
		}
		n := min(uint64(be.Uint32(b)), length)
		list = append(list, engine.Part{Key: be.Uint32(b[4:]), Addr: be.Uint64(b[8:]), Length: n})
		length -= n
	}
	return list, true
}

// physicalMemory maps all memory of the guest, once.
func (t *keyTable) physicalMemory() ([]byte, error) {
	t.guestMu.Lock()
	defer t.guestMu.Unlock()
	if t.guest == nil {
		v, err := t.env.mem.All(physicalSize)
		if err != nil {
			return nil, err
		}
		t.guest = v
	}
	return t.guest.Bytes(), nil
}

// mapPages maps the memory of a key. Its pages may be larger than the memory, so that only the parts
// of them that belong to it need to be the guest's.
func (k *mkey) mapPages(start, length uint64) ([]byte, status) {
	const flags = 3 // of an entry: may be read, may be written
	shift := mkcLogPageSize.int(k.context)
	if shift < 12 || shift > 40 || length == 0 || start+length < start || length > 1<<42 {
		return nil, statusBadParamErr
	}
	off := start & (1<<shift - 1)
	n := (off + length + 1<<shift - 1) >> shift
	if n > uint64(len(k.xlt))/8 {
		return nil, statusBadInpLenErr
	}
	addrs := make([]uint64, n)
	for i := range addrs {
		addrs[i] = be.Uint64(k.xlt[i*8:]) &^ flags
		if addrs[i]&(1<<shift-1) != 0 {
			return nil, statusBadParamErr
		}
	}
	small := off >> 12 << 12
	v, err := k.t.env.mem.Part(addrs, 1<<shift, small, (off+length+0xfff)>>12<<12-small)
	if err != nil {
		return nil, statusBadParamErr
	}
	k.view = v
	return v.Bytes()[off-small:][:length], statusOk
}

const anyPD = 1<<32 - 1

// physical reports whether a key is one of physical addresses of a PD, as the driver's own are.
func (t *keyTable) physical(key, pd uint32, write bool) bool {
	k, ok := t.get(key >> 8)
	if !ok {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.context
	return !mkcFree.is(c) && mkeyMode(c) == mkcModePa && mkcMkey70.u32(c) == key&0xff && (pd == anyPD || mkcPd.u32(c) == pd) &&
		mkcLength64.is(c) && (!write || mkcLw.is(c))
}
