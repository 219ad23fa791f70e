//go:build linux

package machine

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/goverbs/verbs/lab/internal/image"
	"github.com/goverbs/verbs/lab/internal/job"
)

// umlCommand returns the command that runs the machine. Its ports are serial lines, in
// order, on connections to the sockets that it inherits. LAB_UML is not known to the
// kernel, which therefore passes it to process 1 as an environment variable.
func umlCommand(ctx context.Context, k image.Kernel, opt Options, dir, initramfs, _ string) (*exec.Cmd, error) {
	console, err := os.Create(filepath.Join(dir, "console"))
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, k.Image, "mem="+strconv.Itoa(opt.Mem)+"M", "ncpus="+strconv.Itoa(opt.CPUs),
		"seccomp=on", "initrd="+initramfs, "uml_dir="+dir, "umid=machine", "con=null", "con0=null,fd:1",
		"console=tty0", "loglevel=5", "panic=-1", "oops=panic", job.UMLVariable+"=1")
	cmd.Stdout = console
	for i, name := range job.Ports {
		c, err := net.Dial("unix", filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		f, err := c.(*net.UnixConn).File()
		c.Close()
		if err != nil {
			return nil, err
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		cmd.Args = append(cmd.Args, fmt.Sprintf("ssl%d=fd:%d", i, 3+i))
	}
	return cmd, nil
}
