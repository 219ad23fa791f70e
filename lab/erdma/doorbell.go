//go:build linux

package erdma

import "fmt"

// Pages of doorbells, by their number in BAR 0: the kernel's are constant (ERDMA_BAR_SQDB_SPACE_OFFSET and
// so on); a program gets three of its own, by ALLOC_DB.
const (
	firstDoorbell = 1 << 12 // offset of the first page
	firstRecvPage = 1 + 384/4
	firstCQPage   = firstRecvPage + 96/4
	firstPage     = 256 // of programs
	lastPage      = bar0Size>>12 - 1
)

// pageKind is what a page of doorbells is for.
type pageKind uint8

const (
	noPage pageKind = iota
	sendPage
	recvPage
	cqPage
)

func (k pageKind) String() string { return [...]string{"nothing", "sends", "receives", "CQs"}[k] }

// owner is a program that has pages of doorbells, named by the number of its page for sends. 0 is the
// kernel. A queue takes doorbells from its owner's pages alone.
type owner uint32

// page is a page of a program.
type page struct {
	kind  pageKind
	owner owner
}

// pages are those of programs.
type pages struct {
	m    map[uint32]page
	next uint32
}

// find returns a free page, which it has not given out for long, or 0.
func (p *pages) find() uint32 {
	for range lastPage - firstPage + 1 {
		if p.next < firstPage || p.next > lastPage {
			p.next = firstPage
		}
		p.next++
		if _, used := p.m[p.next-1]; !used {
			return p.next - 1
		}
	}
	return 0
}

// alloc gives out three pages. The kernel's erdma maps that which the answer names for receives for CQs,
// and the other way round, while its commands name them as the answer does (alloc_db_resources).
func (p *pages) alloc() (sends, recvs, cqs uint32, ok bool) {
	if p.m == nil {
		p.m = map[uint32]page{}
	}
	if len(p.m)+3 > lastPage-firstPage+1 {
		return 0, 0, 0, false
	}
	sends = p.find()
	o := owner(sends)
	p.m[sends] = page{sendPage, o}
	recvs = p.find()
	p.m[recvs] = page{cqPage, o}
	cqs = p.find()
	p.m[cqs] = page{recvPage, o}
	return sends, recvs, cqs, true
}

// free takes back the pages that alloc has given out together.
func (p *pages) free(sends, recvs, cqs uint32) bool {
	if sends == recvs || sends == cqs || recvs == cqs || p.m[sends] != (page{sendPage, owner(sends)}) {
		return false
	}
	for _, n := range []uint32{recvs, cqs} {
		if p.m[n].owner != owner(sends) {
			return false
		}
	}
	for _, n := range []uint32{sends, recvs, cqs} {
		delete(p.m, n)
	}
	return true
}

// ownerOf returns the program that has a page, as a command names it.
func (d *Device) ownerOf(n uint32) (owner, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok := d.pages.m[n]
	if !ok {
		return 0, fmt.Errorf("page %d of doorbells belongs to nobody: %w", n, errInvalid)
	}
	return p.owner, nil
}

// pageAt returns a page of the kernel or of a program.
func (d *Device) pageAt(n uint32) page {
	switch {
	case n < firstRecvPage:
		return page{kind: sendPage}
	case n < firstCQPage:
		return page{kind: recvPage}
	case n < firstPage:
		return page{kind: cqPage}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pages.m[n]
}

// doorbell handles a store to a page of doorbells (kick_sq_db, erdma_post_recv_one, notify_cq).
func (d *Device) doorbell(n uint32, v uint64) {
	p := d.pageAt(n)
	d.record("doorbell: page %d, for %v: %016x", n, p.kind, v)
	switch p.kind {
	case sendPage:
		if q, ok := d.qps.Get(uint32(v>>32) & 0xfffff); ok && q.owner == p.owner {
			q.shown.Store(uint32(uint16(v)))
			q.e.Doorbell() // the engine ignores it before RTS
		}
	case recvPage: // the first 8 bytes of a receive
		if q, ok := d.qps.Get(uint32(v>>32) & 0xfffff); ok && q.owner == p.owner {
			q.posted.Store(uint32(uint16(v)))
		}
	case cqPage:
		const armed, solicitedOnly = 1 << 31, 1 << 30
		if q, ok := d.cqs.Get(uint32(v>>32) & 0xffffff); ok && q.owner == p.owner && v&armed != 0 {
			q.arm(uint32(v)&0xffffff, v&solicitedOnly != 0)
		}
	}
}
