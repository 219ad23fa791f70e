package harness

import (
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/lab/connectx"
)

// TestPortFlaps takes the port of an adapter down and up again, several times. Packets are lost
// meanwhile, and sent again.
func TestPortFlaps(t *testing.T) {
	runFault(t, fault{title: "the adapter's port is down for 200 ms, five times", quick: "cm rconn rmsg rsock", device: labtest.MLX5, run: func(e *env) {
		c, l := e.startLoad()
		dir := labtest.PCIDir(e, e.device)
		for range 5 {
			labtest.Check(e, connectx.Inject(dir, connectx.FaultPortDown, 0))
			time.Sleep(200 * time.Millisecond)
			labtest.Check(e, connectx.Inject(dir, connectx.FaultPortUp, 0))
			labtest.Check(e, l.waitRounds(1))
		}
		e.waitDevice()
		e.expectContinues(c, l, 5)
	}})
}

// TestFirmwareStops stops the firmware of an adapter: data moves on, if no memory is registered for
// it as rmsg and rconn may, and who dials waits until the firmware goes on.
func TestFirmwareStops(t *testing.T) {
	runFault(t, fault{title: "the adapter's firmware answers no command for a second", quick: "cm rconn rmsg rsock", device: labtest.MLX5, run: func(e *env) {
		c, l := e.startLoad()
		dir := labtest.PCIDir(e, e.device)
		resume := func() { labtest.Check(e, connectx.Inject(dir, connectx.FaultNone, 0)) }
		labtest.Check(e, connectx.Inject(dir, connectx.FaultFirmware, 0))
		defer resume()
		registers := e.layer.Name == "rmsg" || e.layer.Name == "rconn"
		if registers {
			time.AfterFunc(time.Second, resume)
		}
		labtest.Check(e, l.waitRounds(3))
		if !registers {
			time.AfterFunc(time.Second, resume)
			if took := e.reconnect(c); took < 900*time.Millisecond {
				e.Errorf("dialed within %v, without the firmware", took)
			}
		}
		e.expectContinues(c, l, 5)
	}})
}

// TestFatal disables an adapter under load, as a fatal error of its firmware does. The kernel
// removes the device. It makes it again unless it has done so within 30 s, for which
// TestAdapterFatal of tests/rdmadev is a test: here the PCI device is removed and found again.
func TestFatal(t *testing.T) {
	runFault(t, fault{title: "the adapter is disabled by a fatal error", quick: "cm rconn rmsg rsock", device: labtest.MLX5, run: func(e *env) {
		c, l := e.startLoad()
		remove := e.remover()
		start := time.Now()
		labtest.Check(e, connectx.Inject(labtest.PCIDir(e, e.device), connectx.FaultFatal, 0))
		<-l.done
		saw := e.expect(e.peerGoneErrors(verbs.ErrDeviceRemoved), l.err)
		e.close(l.s)
		c.end()
		labtest.Check(e, remove())
		e.addDevice()
		e.finish(e.serve(), saw, l.endTime.Sub(start))
	}})
}
