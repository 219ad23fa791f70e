package debian

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// listsFresh is how long fetched package lists are used.
const listsFresh = 6 * time.Hour

const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// config is added to the machine's own configuration, so that apt does not
// change the machine's state. The status file lists what is installed, which
// must not count as available; hooks would act on the machine.
const config = `Dir::State "%[1]s/state";
Dir::State::Lists "%[1]s/state/lists";
Dir::State::Status "/dev/null";
Dir::Cache "%[1]s/cache";
APT::Sandbox::User "";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
`

// suiteConfig replaces the machine's choice of suites and versions.
const suiteConfig = `Dir::Etc::SourceList "%[1]s/suite.sources";
Dir::Etc::SourceParts "-";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
APT::Default-Release "%[2]s";
`

// notFound matches apt's messages that its lists lack a package or version.
var notFound = regexp.MustCompile(`(?m)^[EN]: (?:Unable to locate package|Version '.*' for '.*' was not found|No packages found|Can't find a source to download|Can't select )`)

// run runs a tool of apt on the archive's own state, in dir, and returns its
// output.
func (a Archive) run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, append([]string{"-c", filepath.Join(a.dir(), "apt.conf")}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8") // for notFound
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if args[0] == "update" || args[0] == "download" {
		cmd.Stdout = a.log()
		cmd.Stderr = io.MultiWriter(&errs, a.log())
	}
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		err = ctx.Err() // rather than "signal: killed"
	case err == nil:
	case notFound.Match(errs.Bytes()):
		err = ErrNotFound
	case errs.Len() > 0:
		err = fmt.Errorf("%s: %w\n%s", name, err, bytes.TrimSpace(errs.Bytes()))
	default:
		err = fmt.Errorf("%s: %w", name, err)
	}
	return out.String(), err
}

// lists fetches the package lists if they are missing or old, and reports
// whether it did. If they cannot be fetched, it accepts old ones.
func (a Archive) lists(ctx context.Context) (fetched bool, err error) {
	fi, err := os.Stat(a.stamp())
	if err == nil && time.Since(fi.ModTime()) < listsFresh {
		return false, a.configure()
	}
	old := err == nil
	if err = a.update(ctx); err != nil && old && ctx.Err() == nil {
		fmt.Fprintf(a.log(), "%v\nusing package lists of %s\n", err, fi.ModTime().Format(time.DateTime))
		return false, nil
	}
	return err == nil, err
}

// stamp returns the path of a file that is as old as the package lists.
func (a Archive) stamp() string { return filepath.Join(a.dir(), "updated") }

// update fetches the package lists.
func (a Archive) update(ctx context.Context) error {
	if err := a.configure(); err != nil {
		return err
	}
	var sources strings.Builder
	for _, suite := range a.suites() {
		uri, err := a.mirror(ctx, suite)
		if err != nil {
			return err
		}
		fmt.Fprintf(&sources, "Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n\n", uri, suite, keyring)
	}
	if err := os.WriteFile(filepath.Join(a.dir(), "suite.sources"), []byte(sources.String()), 0o644); err != nil {
		return err
	}
	if _, err := a.run(ctx, "", "apt-get", "update"); err != nil {
		return fmt.Errorf("package lists of suite %q: %w", a.Suite, err)
	}
	return os.WriteFile(a.stamp(), nil, 0o644)
}

// configure writes apt's configuration.
func (a Archive) configure() error {
	dir := a.dir()
	for _, d := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	text := fmt.Sprintf(config, dir)
	if a.Suite != "" {
		text += fmt.Sprintf(suiteConfig, dir, a.Suite)
	}
	return os.WriteFile(filepath.Join(dir, "apt.conf"), []byte(text), 0o644)
}

// suites returns the archive's suite and the release that it adds to, if any.
func (a Archive) suites() []string {
	if a.Suite == "" {
		return nil
	}
	release, _, partial := strings.Cut(a.Suite, "-")
	if !partial {
		return []string{a.Suite}
	}
	return []string{a.Suite, release}
}

// mirror returns the URI from which the machine gets Debian, or its security
// updates. The machine's own package lists identify that source; if they are
// empty, as in a container, mirror fetches lists into the cache.
func (a Archive) mirror(ctx context.Context, suite string) (string, error) {
	label := "Debian"
	if strings.HasSuffix(suite, "-security") {
		label = "Debian-Security"
	}
	host := Archive{Dir: a.Dir, Log: a.Log}
	uri, err := findMirror(ctx, label)
	if uri != "" || err != nil {
		return uri, err
	}
	unlock, err := host.lock(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := host.lists(ctx); err != nil {
		return "", err
	}
	uri, err = findMirror(ctx, label, "-c", filepath.Join(host.dir(), "apt.conf"))
	if uri == "" && err == nil {
		err = errors.New("this machine's apt sources name no Debian mirror labelled " + label)
	}
	return uri, err
}

func findMirror(ctx context.Context, label string, opts ...string) (string, error) {
	args := append(opts, "indextargets", "--format", "$(REPO_URI) $(ORIGIN) $(LABEL)", "Created-By: Packages")
	out, err := exec.CommandContext(ctx, "apt-get", args...).Output()
	if err != nil {
		return "", fmt.Errorf("apt-get indextargets: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		if uri, about, _ := strings.Cut(strings.TrimSpace(line), " "); about == "Debian "+label {
			return uri, nil
		}
	}
	return "", nil
}
