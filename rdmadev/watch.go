package rdmadev

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/nldev"
)

// Change is a difference between the devices of two moments.
type Change struct {
	Kind ChangeKind
	Old  Device // as it was; empty if it was added
	New  Device // as it is; empty if it was removed
	Port int    // number of the port; 0 if the change is one of the device
}

// ChangeKind is the kind of a change.
type ChangeKind string

const (
	DevicePresent     ChangeKind = "device present" // when the watch began
	DeviceAdded       ChangeKind = "device added"
	DeviceRemoved     ChangeKind = "device removed"
	DeviceRenamed     ChangeKind = "device renamed"
	PortChanged       ChangeKind = "port changed"       // State or PhysState
	LinkChanged       ChangeKind = "link changed"       // Rate, Lanes or Speed
	InterfacesChanged ChangeKind = "interfaces changed" // of a port
)

// WatchOptions are options for [Source.Watch]. The zero value selects defaults.
type WatchOptions struct {
	// Interval is the time after which Watch reads the devices even if the kernel reports no
	// change. Zero means a second. The kernel does not report the states of InfiniBand's ports, so
	// Watch may overlook a link that fails and recovers within the interval; the counter
	// link_downed shows it.
	Interval time.Duration
}

// settleTime is the delay between a report and reading the devices: reports often come in
// groups, and port states follow those of network interfaces.
const settleTime = 20 * time.Millisecond

// Watch yields the changes to the devices of this machine, see [Source.Watch].
func Watch(ctx context.Context) iter.Seq2[Change, error] {
	return Source{}.Watch(ctx, WatchOptions{})
}

// Watch yields the changes to the devices: first each existing device as [DevicePresent], then
// changes. It ends with the loop, or with the error of ctx. It also yields errors of reading the
// devices, and continues.
//
// The kernel reports devices that come, go and are renamed, and network interfaces, with which
// the ports of RoCE and iWARP go up and down. Before Linux 6.12 a program in a container may get no
// reports of devices; Watch then notices changes after Interval at most.
func (s Source) Watch(ctx context.Context, opt WatchOptions) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		reported := make(chan struct{}, 1)
		if s.Sys == "" {
			nldev.Notify(ctx, func() { // without it, the ticker remains
				select {
				case reported <- struct{}{}:
				default:
				}
			})
		}
		if opt.Interval <= 0 {
			opt.Interval = time.Second
		}
		tick := time.NewTicker(opt.Interval)
		defer tick.Stop()
		listed := false
		for known := []Device(nil); ; {
			devices, err := s.Devices()
			if err != nil && !yield(Change{}, err) {
				return
			}
			if err == nil {
				for _, c := range changes(known, devices) {
					if !listed {
						c.Kind = DevicePresent
					}
					if !yield(c, nil) {
						return
					}
				}
				known, listed = devices, true
			}
			select {
			case <-ctx.Done():
				yield(Change{}, host.Ended(ctx))
				return
			case <-reported:
				time.Sleep(settleTime)
			case <-tick.C:
			}
		}
	}
}

// changes returns the differences between two lists of devices.
func changes(before, after []Device) (list []Change) {
	same := func(a Device) func(Device) bool {
		return func(b Device) bool {
			if a.Index < 0 || b.Index < 0 {
				return a.Name == b.Name && a.NodeGUID == b.NodeGUID
			}
			return a.Index == b.Index
		}
	}
	for _, old := range before {
		if !slices.ContainsFunc(after, same(old)) {
			list = append(list, Change{Kind: DeviceRemoved, Old: old})
		}
	}
	for _, now := range after {
		i := slices.IndexFunc(before, same(now))
		if i < 0 {
			list = append(list, Change{Kind: DeviceAdded, New: now})
			continue
		}
		old := before[i]
		if old.Name != now.Name {
			list = append(list, Change{Kind: DeviceRenamed, Old: old, New: now})
		}
		for _, p := range now.Ports {
			j := slices.IndexFunc(old.Ports, func(o Port) bool { return o.Num == p.Num })
			if j < 0 {
				continue
			}
			o := old.Ports[j]
			add := func(kind ChangeKind) { list = append(list, Change{kind, old, now, p.Num}) }
			if o.State != p.State || o.PhysState != p.PhysState {
				add(PortChanged)
			}
			if o.Rate != p.Rate || o.Lanes != p.Lanes || o.Speed != p.Speed {
				add(LinkChanged)
			}
			if !slices.Equal(o.Interfaces, p.Interfaces) {
				add(InterfacesChanged)
			}
		}
	}
	return list
}
