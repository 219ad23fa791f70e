//go:build linux

// Package guest is process 1 of a machine: it loads the drivers, makes the devices and runs the jobs
// from the host. It shares only package job with the host.
package guest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/lab/internal/job"
)

// Main is the guest's /init. It powers the machine off at the end, or if it fails.
func Main() {
	if err := guest(); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err) // stderr is the console
		unix.Sync()
	}
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}

func guest() error {
	s, err := Boot()
	if err != nil {
		return err
	}
	port, err := openPort(job.PortResult)
	if err != nil {
		return err
	}
	if !s.Probe {
		err = obey(s, port)
	}
	if s.Probe || err != nil {
		r := job.Result{}
		if err != nil {
			r.Exit, r.Error = job.ExitLab, err.Error()
		}
		json.NewEncoder(port).Encode(r)
		port.Read(make([]byte, 1)) // until the host has read it
	}
	return err
}

// Boot reads the setup, brings the machine up, and loads the modules of the initramfs.
func Boot() (s job.Setup, err error) {
	text, err := os.ReadFile("/" + job.SetupFile)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, err
	}
	for _, m := range []mount{{"devtmpfs", "/dev", "devtmpfs", ""}, {"proc", "/proc", "proc", ""}, {"sysfs", "/sys", "sysfs", ""}} {
		if err := m.do(); err != nil {
			return s, err
		}
	}
	if err := warmUp(); err != nil {
		return s, err
	}
	if s.Modules != "" { // not User-mode Linux, whose processors are all up
		if err := onlineCPUs(); err != nil {
			return s, err
		}
	}
	for _, m := range s.Early {
		if err := loadModule("/" + m); err != nil {
			return s, err
		}
	}
	return s, nil
}

// obey makes the devices, reports that this machine is ready, and runs its jobs. The host saves the machine
// between Ready and the first job, so that what follows also happens in each machine that is restored.
func obey(s job.Setup, port *os.File) error {
	if err := addDevices(s); err != nil {
		return err
	}
	if _, err := port.WriteString(job.Ready); err != nil {
		return err
	}
	orders := json.NewDecoder(port)
	var first job.Order
	if err := orders.Decode(&first); err != nil || first.Job == nil {
		return err
	}
	if f := first.Job.Restored; f != nil {
		if err := freshen(*f); err != nil {
			return err
		}
	}
	w, err := newWorker(*first.Job, port)
	if err != nil {
		return err
	}
	queue := make(chan job.Order)
	go func() {
		defer close(queue)
		queue <- first
		for {
			var o job.Order
			if orders.Decode(&o) != nil {
				return
			}
			queue <- o
		}
	}()
	for o := range queue {
		if o.Job == nil { // a signal for a program that has ended
			continue
		}
		r := job.Result{Exit: job.ExitLab}
		if err := w.do(*o.Job, queue, &r); err != nil {
			return err
		}
		if err := json.NewEncoder(port).Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// addDevices loads the drivers and makes the devices, with the modules and programs of the
// host. It leaves nothing mounted, as a machine that has mounted the host's root cannot be saved.
func addDevices(s job.Setup) error {
	r, err := enterRoot(rootMounts(s, ""))
	if err != nil {
		return err
	}
	os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
	for _, m := range s.Late {
		if err := loadModule(filepath.Join("/lib/modules", s.Release, m)); err != nil {
			return err
		}
	}
	if err := setupNetwork(s.Number); err != nil {
		return err
	}
	return r.leave()
}

func loadModule(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := 0
	if !strings.HasSuffix(file, ".ko") {
		flags = unix.MODULE_INIT_COMPRESSED_FILE
	}
	if err := unix.FinitModule(int(f.Fd()), "", flags); err != nil && err != unix.EEXIST {
		return fmt.Errorf("load %s: %w", file, err)
	}
	return nil
}
