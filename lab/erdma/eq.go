//go:build linux

package erdma

import (
	"fmt"

	"github.com/goverbs/verbs/lab/internal/pcidev"
)

const (
	aeqNum    = 1 << 16 // of the asynchronous EQ, which the driver does not number
	eqeSize   = 16      // EQE_SIZE
	logMaxEQ  = 16
	typeCEQ   = 1      // ERDMA_EQ_TYPE_CEQ
	eqIndexes = 0xffff // the driver counts events in 16 bits (struct erdma_eq)
)

// Types of asynchronous events, ERDMA_AE_TYPE_*.
const (
	eventQPFatal = 0
	eventCQError = 3
)

func (d *Device) openEQ(num uint32, vector int, addr uint64, depth uint32) error {
	if depth == 0 || depth&(depth-1) != 0 || depth > 1<<logMaxEQ || vector >= vectors {
		return fmt.Errorf("EQ %d of %d entries with vector %d: %w", num, depth, vector, errInvalid)
	}
	q := &pcidev.EventQueue{Interrupt: d.interrupt, Vector: vector, Mask: eqIndexes}
	var err error
	if q.Ring, err = d.ring([]uint64{addr}, contiguous, 0, int(depth), eqeSize); err != nil {
		return err
	}
	if !d.eqs.Put(num, q) {
		q.Close()
		return fmt.Errorf("EQ %d exists: %w", num, errInvalid)
	}
	return nil
}

// createEQ is struct erdma_cmdq_create_eq_req.
func (d *Device) createEQ(b []byte, _ *response) error {
	vector, num := int(b[16]), uint32(b[17])
	if num == 0 || num >= vectors || b[18] > logMaxEQ || b[19] != typeCEQ {
		return fmt.Errorf("EQ %d of 1<<%d entries, type %d: %w", num, b[18], b[19], errInvalid)
	}
	if err := d.record8(le.Uint64(b[20:])); err != nil {
		return err
	}
	return d.openEQ(num, vector, le.Uint64(b[8:]), 1<<b[18])
}

// destroyEQ is struct erdma_cmdq_destroy_eq_req.
func (d *Device) destroyEQ(b []byte, _ *response) error {
	num := uint32(b[17])
	for _, q := range d.cqs.All() {
		if q.eqn == num {
			return fmt.Errorf("CQ %d uses EQ %d: %w", q.num, num, errInvalid)
		}
	}
	if num == 0 || b[19] != typeCEQ {
		return errInvalid
	}
	q, ok := d.eqs.Remove(num)
	if !ok {
		return fmt.Errorf("no EQ %d: %w", num, errInvalid)
	}
	q.Close()
	return nil
}

// event raises an event whose entry begins with a word, which gets the owner bit, and further ones.
func (d *Device) event(num, first uint32, more ...uint32) {
	q, ok := d.eqs.Get(num)
	if !ok {
		return
	}
	posted := q.Post(func(r *pcidev.Ring, i uint32) {
		e := r.At(i)
		clear(e[4:])
		for j, w := range more {
			le.PutUint32(e[4+4*j:], w)
		}
		r.Word(i, 0).Store(pcidev.LittleEndian(first | ownerBit(r, i)))
		d.record("eqe %d +%#x %x", num, i%r.Count, e)
	})
	if posted && num != 0 {
		d.faults.Event()
	}
}

// asynchronous raises an asynchronous event (erdma_aeq_event_handler).
func (d *Device) asynchronous(typ, object uint32) { d.event(aeqNum, typ<<16, object) }

// eqDoorbell takes the driver's consumer index (notify_eq).
func (d *Device) eqDoorbell(num uint32, v uint64) {
	const armed = 1 << 31
	if q, ok := d.eqs.Get(num); ok {
		q.Doorbell(uint32(v), v&armed != 0)
	}
}
