//go:build linux

package connectx

import (
	"testing"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

// TestPortDown checks what a port says of its link in each of the ways that drivers ask, while it is
// up and while it is down.
func TestPortDown(t *testing.T) {
	p := &port{eqs: new(eqTable)}
	for _, c := range []struct {
		name                         string
		paos, vport, state, physical uint64
		down                         bool
	}{
		{"at first", portUp, 1, stateActive, physicalUp, false},
		{"down", portDown, 0, stateDown, physicalPolling, true},
		{"up again", portUp, 1, stateActive, physicalUp, false},
	} {
		if c.name != "at first" {
			p.setLink(!c.down)
		}
		paos := make([]byte, ifc.PaosRegSize)
		p.readRegister(ifc.RegPaos, make([]byte, ifc.PaosRegSize), paos)
		if oper, admin := ifc.PaosRegOperStatus.Get(paos), ifc.PaosRegAdminStatus.Get(paos); oper != c.paos || admin != portUp {
			t.Errorf("%s: PAOS has state %d, want %d, and the administrator's %d, want %d", c.name, oper, c.paos, admin, portUp)
		}
		vport := &call{in: make([]byte, 64), out: make([]byte, 64)}
		if status := p.queryVportState(vport); status != ifc.StatusOk || ifc.QueryVportStateOutState.Get(vport.out) != c.vport {
			t.Errorf("%s: the vport's state is %d (status %v), want %d", c.name, ifc.QueryVportStateOutState.Get(vport.out), status, c.vport)
		}
		hca := &call{in: make([]byte, 64), out: make([]byte, 1024)}
		status := p.queryHCAVport(hca)
		ctx := ifc.QueryHcaVportContextOutHcaVportContext.At(hca.out)
		state, physical := ifc.HcaVportContextPortState.Get(ctx), ifc.HcaVportContextPortPhysicalState.Get(ctx)
		if status != ifc.StatusOk || state != c.state || physical != c.physical {
			t.Errorf("%s: an InfiniBand port in state %d, %d (status %v), want %d, %d", c.name, state, physical, status, c.state, c.physical)
		}
		if p.isDown() != c.down {
			t.Errorf("%s: down is %v", c.name, p.isDown())
		}
	}
}
