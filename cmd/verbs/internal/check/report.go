package check

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/cmd/verbs/internal/perf"
	"github.com/goverbs/verbs/internal/endpoint"
	"github.com/goverbs/verbs/internal/scenario"
	"github.com/goverbs/verbs/rdmadev"
	"github.com/goverbs/verbs/uverbs"
)

// report is what --json prints.
type report struct {
	Machine   machine       `json:"machine"`
	Peer      *machine      `json:"peer,omitempty"`
	Start     time.Time     `json:"start"`
	Scenarios []outcome     `json:"scenarios"`
	Figures   []perf.Figure `json:"figures"`
	Measured  string        `json:"measured,omitempty"` // "loopback" or "peer"
}

// machine is what an end runs on.
type machine struct {
	cli.Build
	Platform string     `json:"platform"`
	Device   string     `json:"device"`
	Driver   string     `json:"driver"`   // of the kernel
	Provider string     `json:"provider"` // of this program
	Firmware string     `json:"firmware,omitempty"`
	Board    string     `json:"board,omitempty"`
	Model    string     `json:"model,omitempty"`
	PCI      string     `json:"pci,omitempty"` // IDs
	VF       bool       `json:"virtual_function"`
	Features []string   `json:"features"`
	Ports    []portInfo `json:"ports"`
}

type portInfo struct {
	Port      int    `json:"port"`
	State     string `json:"state"`
	LinkLayer string `json:"link_layer"`
	MTU       int    `json:"mtu"`
	Mbps      int    `json:"mbps"`
	Used      bool   `json:"used"`
	GID       string `json:"gid,omitempty"` // that is used
	GIDIndex  int    `json:"gid_index"`
	GIDType   string `json:"gid_type,omitempty"`
}

// describe describes the machine of a port.
func (p port) describe() (*machine, error) {
	d := p.desc
	m := &machine{
		Build: cli.ThisBuild(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Device: d.Name, Provider: p.Dev.Driver(), Firmware: d.Firmware, Board: d.Board, Features: []string{},
		Driver: d.Driver, Model: d.Model, VF: d.PCI.PhysFn != "",
	}
	if d.PCI.Addr != "" {
		m.PCI = fmt.Sprintf("%04x:%04x, subsystem %04x:%04x", d.PCI.Vendor, d.PCI.Device, d.PCI.SubsysVendor, d.PCI.SubsysDevice)
	}
	for _, f := range uverbs.Features() {
		if p.Dev.Probe(f) == nil {
			m.Features = append(m.Features, string(f))
		}
	}
	for _, port := range d.Ports {
		num := port.Num
		a, err := p.Dev.QueryPort(num)
		if err != nil {
			return nil, err
		}
		info := portInfo{
			Port: num, State: a.State.String(), LinkLayer: a.LinkLayer.String(),
			MTU: a.ActiveMTU.Bytes(), Mbps: a.Speed(), Used: num == p.Num,
		}
		if info.Used && d.Protocol != rdmadev.IWARP {
			info.GID, info.GIDIndex, info.GIDType = p.GID.GID.String(), p.GID.Index, p.GID.Type.String()
		}
		m.Ports = append(m.Ports, info)
	}
	return m, nil
}

// outcome is how a scenario has ended.
type outcome struct {
	Scenario string   `json:"scenario"`
	With     string   `json:"with"`   // "loopback" or "peer"
	Result   string   `json:"result"` // "passed", "failed", or "refused": the device does not have it
	Seconds  float64  `json:"seconds"`
	Active   *verdict `json:"active,omitempty"` // unless it has passed
	Passive  *verdict `json:"passive,omitempty"`
}

const (
	passed  = "passed"
	failed  = "failed"
	refused = "refused"
)

// verdict is how a scenario has ended on one end.
type verdict struct {
	Error       string       `json:"error,omitempty"`
	Unsupported bool         `json:"unsupported,omitempty"`
	Completions []completion `json:"completions,omitempty"` // the last ones
}

// completion has the fields of a verbs.WC as they are.
type completion struct {
	ID        uint64 `json:"wr_id"`
	Status    uint32 `json:"status"`
	Opcode    uint32 `json:"opcode"`
	VendorErr uint32 `json:"vendor_err"`
	ByteLen   uint32 `json:"byte_len"`
	QPNum     uint32 `json:"qp_num"`
	SrcQP     uint32 `json:"src_qp"`
	Flags     uint32 `json:"wc_flags"`
}

func (c completion) String() string {
	return fmt.Sprintf("completion: status %#x (%s), vendor_err %#x, opcode %#x, wc_flags %#x, wr_id %#x, byte_len %#x, qp_num %#x, src_qp %#x",
		c.Status, verbs.WCStatus(c.Status).String(), c.VendorErr, c.Opcode, c.Flags, c.ID, c.ByteLen, c.QPNum, c.SrcQP)
}

// newVerdict is that of an error. An end that was told that the other one has ended has no reason
// of its own.
func newVerdict(err error, a *scenario.Actor) (v verdict) {
	if err == nil || errors.Is(err, endpoint.ErrEnded) {
		return v
	}
	v = verdict{Error: err.Error(), Unsupported: errors.Is(err, errors.ErrUnsupported)}
	if v.Unsupported || a.Local == nil {
		return v
	}
	for _, wc := range a.WCs {
		v.Completions = append(v.Completions, completion{
			wc.ID, uint32(wc.Status), uint32(wc.Opcode), wc.VendorErr, wc.ByteLen, wc.QPNum, wc.SrcQP, uint32(wc.Flags),
		})
	}
	return v
}

// result joins the verdicts of both ends.
func (o *outcome) result(active, passive verdict) {
	o.Result = passed
	for _, v := range []verdict{active, passive} {
		switch {
		case v.Error != "" && !v.Unsupported:
			o.Result = failed
		case v.Error != "" && o.Result == passed:
			o.Result = refused
		}
	}
	if active.Error != "" {
		o.Active = &active
	}
	if passive.Error != "" {
		o.Passive = &passive
	}
}

// printer prints the report as text, part by part.
type printer struct {
	w       io.Writer
	width   int
	verbose bool
}

func (p *printer) line(head, text string) {
	fmt.Fprintln(p.w, cli.Wrap(fmt.Sprintf("%-9s ", head), cli.Printable(text), p.width, "            "))
}

func (p *printer) machine(title string, m *machine) {
	p.line(title, fmt.Sprintf("verbs %s, %s, %s, kernel %s", m.Version, m.Go, m.Platform, cmp.Or(m.Kernel, "unknown")))
	var facts []string
	for _, f := range [][2]string{{"driver", m.Driver}, {"provider", m.Provider}, {"firmware", m.Firmware}, {"board", m.Board}, {"model", m.Model}, {"PCI", m.PCI}} {
		if f[1] != "" {
			facts = append(facts, f[0]+" "+f[1])
		}
	}
	if m.VF {
		facts = append(facts, "virtual function")
	}
	p.line("device", m.Device+": "+strings.Join(facts, ", "))
	for _, port := range m.Ports {
		text := fmt.Sprintf("%s, %s, MTU %d, %g Gbit/s", port.State, port.LinkLayer, port.MTU, float64(port.Mbps)/1e3)
		if port.GID != "" {
			text += fmt.Sprintf(", GID %d: %s, %s", port.GIDIndex, port.GID, port.GIDType)
		}
		if !port.Used {
			text += ", not used"
		}
		p.line(fmt.Sprintf("port %d", port.Port), text)
	}
	p.line("features", strings.Join(m.Features, "; "))
	fmt.Fprintln(p.w)
}

func (p *printer) outcome(o outcome) {
	text := o.With + ": " + o.Scenario
	if p.verbose {
		text += fmt.Sprintf(", %.3f s", o.Seconds)
	}
	for _, v := range []*verdict{o.Active, o.Passive} {
		if v != nil && o.Result == refused {
			text += ": " + v.Error
			break
		}
	}
	p.line(o.Result, text)
	if o.Result != failed {
		return
	}
	for _, e := range []struct {
		name string
		*verdict
	}{{"active", o.Active}, {"passive", o.Passive}} {
		if e.verdict == nil {
			continue
		}
		p.line("", e.name+" end: "+e.Error)
		for _, c := range e.Completions {
			p.line("", "  "+c.String())
		}
	}
}

func (p *printer) figures(with string, figures []perf.Figure) {
	fmt.Fprintf(p.w, "\nmeasured with %s\n", with)
	for _, f := range figures {
		text := f.Error
		switch {
		case f.Latency != nil:
			text = f.Latency.String()
		case f.Bandwidth != nil:
			text = fmt.Sprintf("%.3f Gbit/s, %.6f million messages/s", f.Bandwidth.Gbit, f.Bandwidth.Messages/1e6)
		}
		if f.Size > 0 { // else it is why nothing was measured
			text = fmt.Sprintf("%d bytes: %s", f.Size, text)
		}
		p.line(f.Test, text)
	}
}
