package hostile

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/uverbs"
)

// region is a memory region of a victim, read from its fields.
type region struct {
	addr uint64
	key  uint32 // the remote one, or the local one if there is none
	size int
}

var mrType = reflect.TypeFor[uverbs.MR]()

// regionsOf returns the memory regions that a connection or socket holds: the receive ring
// first, or the largest.
func regionsOf(victim any) []region {
	var found []region
	seen := map[uintptr]bool{}
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer:
			// These lead to regions of other connections.
			name := v.Type().Elem().Name()
			if v.IsNil() || seen[v.Pointer()] || strings.Contains(" Loop device shard ID Channel PD Context CQ QP CompChannel ", " "+name+" ") {
				return
			}
			seen[v.Pointer()] = true
			if v.Type().Elem() == mrType {
				mr := v.Elem()
				r := region{addr: mr.FieldByName("addr").Uint(), key: uint32(mr.FieldByName("rkey").Uint()), size: int(mr.FieldByName("size").Int())}
				if r.key == 0 {
					r.key = uint32(mr.FieldByName("lkey").Uint())
				}
				found = append(found, r)
				return
			}
			walk(v.Elem())
		case reflect.Interface:
			walk(v.Elem())
		case reflect.Struct:
			for i := range v.NumField() {
				walk(v.Field(i))
			}
		case reflect.Array:
			for i := range v.Len() {
				walk(v.Index(i))
			}
		case reflect.Slice:
			if v.Type().Elem().Kind() != reflect.Uint8 {
				v = v.Slice(0, v.Len()) // the copy does not become shorter
				for i := range v.Len() {
					walk(v.Index(i))
				}
			}
		}
	}
	walk(reflect.ValueOf(victim))
	if _, ordered := victim.(*rsock.Conn); !ordered {
		slices.SortFunc(found, func(a, b region) int { return b.size - a.size })
	}
	return found
}

// tryAccess posts a request that accesses a victim's memory, and returns the error of its
// completion. A WRITE on siw completes before the peer checks it, so a READ of the same
// bytes follows, which siw never refuses for a missing right to read.
func (p *peer) tryAccess(op verbs.Opcode, r region, off int) error {
	const size = 8
	local := p.mem.SGE(sendAt, size)
	wr := verbs.SendWR{Opcode: op, RemoteAddr: r.addr + uint64(off), RKey: r.key, SGL: []verbs.SGE{local}}
	if err := p.complete(wr); err != nil || op != verbs.OpRDMAWrite || p.device != labtest.SIW {
		return err
	}
	wr.Opcode = verbs.OpRDMARead
	return p.complete(wr)
}

// complete posts a request and waits for its completion.
func (p *peer) complete(wr verbs.SendWR) error {
	const id = 1 << 40
	wr.ID = id
	if !p.post(wr) {
		return fmt.Errorf("not posted: %v", p.Err())
	}
	var err error
	labtest.Until(p.t, "the completion", func() bool {
		var wc [1]verbs.WC
		for p.SendCQ.Poll(wc[:]) > 0 {
			if wc[0].ID == id {
				err = wc[0].Err()
				return true
			}
		}
		return false
	})
	return err
}

// allowReads lets a peer start READs and atomics even if its victim has not agreed to any.
func (p *peer) allowReads() {
	if p.iwarp() {
		return // the connection manager has set the limits, which siw does not check
	}
	p.t.Helper()
	for _, step := range []struct {
		attr verbs.QPAttr
		mask verbs.QPAttrMask
	}{
		{attr: verbs.QPAttr{State: verbs.StateSQD}},
		{attr: verbs.QPAttr{State: verbs.StateSQD, MaxRDAtomic: 1}, mask: verbs.MaskMaxRDAtomic},
		{attr: verbs.QPAttr{State: verbs.StateRTS}},
	} {
		// Each is refused while the step before drains the send queue.
		labtest.Until(p.t, "the send queue to drain", func() bool {
			return p.QP.Modify(step.attr, step.mask|verbs.MaskState) == nil
		})
	}
}

// reachable describes what a peer may do with its victim's regions, by their number.
type reachable struct {
	regions             int
	write, read, atomic []int
}

// TestReach checks that a peer can access only that memory of its connection that is meant
// for it, and not a byte more, and no memory of other connections or of former ones. Reads on
// siw, which does not check the right to read, are exceptions.
func TestReach(t *testing.T) {
	want := map[string]reachable{
		"rsock": {regions: 2, write: []int{0}}, // the receive ring; not the send ring
		"rmsg":  {regions: 3, read: []int{2}},  // announced messages; not receives or small messages
		"rconn": {regions: 3},                  // not the scratch memory, adverts and messages
	}
	labtest.EachClean(t, func(t *testing.T, device string) {
		if device == labtest.MLX5 {
			t.Skip("mlx5_ib has no SQD, in which a peer gives itself READs")
		}
		for _, l := range layers {
			withServer(t, l, device, 20*time.Second, func(t *testing.T, s *server, g *goodClient) {
				w := want[l.name]
				connect := func(t *testing.T) (*peer, []region) {
					p := labtest.Must(dialPeer(t, s, l.private))(t)
					l.warm(p)
					p.allowReads()
					regions := regionsOf(s.waitConn(t, p.LocalAddr().String()))
					if len(regions) < w.regions {
						t.Fatalf("%d regions, want %d: %+v", len(regions), w.regions, regions)
					}
					return p, regions
				}
				attempt := func(name string, allowed bool, op verbs.Opcode, of func(p *peer, mine []region) (region, int)) {
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						p, mine := connect(t)
						r, off := of(p, mine)
						if err := p.tryAccess(op, r, off); (err == nil) != allowed {
							t.Errorf("%v of 8 bytes at %d of %d: %v", op, off, r.size, err)
						}
						g.checkServed(t)
					})
				}
				gone, stale := connect(t)
				gone.Disconnect()
				labtest.Until(t, "the connection's end", func() bool { _, ended := s.connError(gone); return ended })
				others := regionsOf(s.onlyConn(t))
				t.Run("at once", func(t *testing.T) {
					for i := range w.regions {
						own := func(off func(r region) int) func(*peer, []region) (region, int) {
							return func(_ *peer, mine []region) (region, int) { return mine[i], off(mine[i]) }
						}
						inside := own(func(r region) int { return r.size - 8 })
						has := func(of []int) bool { return fmt.Sprint(of) == fmt.Sprint([]int{i}) }
						attempt(fmt.Sprintf("write to %d", i), has(w.write), verbs.OpRDMAWrite, inside)
						attempt(fmt.Sprintf("read %d", i), has(w.read) || device == labtest.SIW, verbs.OpRDMARead, inside)
						if labtest.Has(t, device, uverbs.FeatureAtomics) {
							attempt(fmt.Sprintf("atomic on %d", i), has(w.atomic), verbs.OpFetchAdd, own(func(region) int { return 0 }))
						}
						if i > 0 {
							continue
						}
						attempt(fmt.Sprintf("write beyond %d", i), false, verbs.OpRDMAWrite, own(func(r region) int { return r.size - 7 }))
						attempt(fmt.Sprintf("write before %d", i), false, verbs.OpRDMAWrite, own(func(region) int { return -1 }))
						attempt(fmt.Sprintf("read beyond %d", i), false, verbs.OpRDMARead, own(func(r region) int { return r.size - 7 }))
						for what, regions := range map[string][]region{"another connection's": others, "an ended connection's": stale} {
							of := func(*peer, []region) (region, int) { return regions[i], 0 }
							attempt(fmt.Sprintf("write to %s %d", what, i), false, verbs.OpRDMAWrite, of)
							attempt(fmt.Sprintf("read %s %d", what, i), false, verbs.OpRDMARead, of)
						}
					}
				})
			})
		}
	})
}
