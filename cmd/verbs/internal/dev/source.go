// Package dev holds the commands of verbs that show and change RDMA devices of any driver
// without opening them: devices, ports, counters, res, stat, link and monitor.
package dev

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/rdmadev"
	"github.com/goverbs/verbs/uverbs"
)

// source is where devices are read from; tests read others.
var source rdmadev.Source

// devices returns the device with a name, or all if it is empty. Without a device there is an
// error; if it is that there are none at all, an empty list is the answer with --json.
func devices(w io.Writer, json bool, name string) ([]rdmadev.Device, error) {
	if name != "" {
		d, err := source.Find(name)
		if err != nil {
			return nil, err
		}
		return []rdmadev.Device{d}, nil
	}
	devs, err := source.Devices()
	if err != nil || len(devs) > 0 {
		return devs, err
	}
	if json {
		if err := cli.WriteJSON(w, []any{}); err != nil {
			return nil, err
		}
	}
	if s, serr := rdmadev.ReadSystem(); serr == nil && !s.SharedDevices {
		return nil, fmt.Errorf("%w in this network namespace, which does not see those of others (verbs doctor has the remedies)", verbs.ErrNoDevice)
	}
	_, err = uverbs.Find("") // with a remedy
	return nil, cmp.Or(err, error(verbs.ErrNoDevice))
}

// oneLine returns the text of errors in one line, or "" if there are none.
func oneLine(errs []error) string {
	err := errors.Join(errs...)
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}

// with calls do with the device that has a name.
func with(name string, do func(rdmadev.Device) error) error {
	d, err := source.Find(name)
	if err != nil {
		return err
	}
	return privileged(do(d))
}

// privileged adds what an ordinary user needs to change devices.
func privileged(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w (this needs CAP_NET_ADMIN: run it as root)", err)
	}
	return err
}
