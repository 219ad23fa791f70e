package debian

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// listsFresh is how long fetched package lists are good for.
const listsFresh = 6 * time.Hour

const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// command runs a tool of apt on the archive's own state.
func (a Archive) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	dir := a.dir()
	opts := []string{
		"-o", "Dir::State=" + dir + "/state",
		"-o", "Dir::State::Lists=" + dir + "/state/lists",
		"-o", "Dir::Cache=" + dir + "/cache",
		"-o", "APT::Sandbox::User=",
		"-o", "Acquire::Languages=none",
	}
	if a.Suite != "" {
		opts = append(opts,
			"-o", "Dir::Etc::SourceList="+dir+"/suite.sources",
			"-o", "Dir::Etc::SourceParts=-")
	}
	return exec.CommandContext(ctx, name, append(opts, args...)...)
}

// update fetches the package lists unless they are fresh.
func (a Archive) update(ctx context.Context) error {
	dir := a.dir()
	stamp := filepath.Join(dir, "updated")
	if fi, err := os.Stat(stamp); err == nil && time.Since(fi.ModTime()) < listsFresh {
		return nil
	}
	for _, d := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	if a.Suite != "" {
		uri, err := mirror(ctx, strings.HasSuffix(a.Suite, "-security"))
		if err != nil {
			return err
		}
		entry := fmt.Sprintf("Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n", uri, a.Suite, keyring)
		if err := os.WriteFile(filepath.Join(dir, "suite.sources"), []byte(entry), 0o644); err != nil {
			return err
		}
	}
	cmd := a.command(ctx, "apt-get", "update")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = a.log(), &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("apt-get update for suite %q: %w\n%s", a.Suite, err, out.Bytes())
	}
	return os.WriteFile(stamp, nil, 0o644)
}

// mirror is the URI the machine gets Debian, or its security updates, from.
func mirror(ctx context.Context, security bool) (string, error) {
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN) $(LABEL)", "Created-By: Packages").Output()
	if err != nil {
		return "", fmt.Errorf("apt-get indextargets: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		uri, about, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch about {
		case "Debian Debian":
			if !security {
				return uri, nil
			}
		case "Debian Debian-Security":
			if security {
				return uri, nil
			}
		}
	}
	return "", errors.New("this machine's apt sources name no Debian mirror")
}
