// Package shell implements verbs completion and verbs man, which describe the command line
// to shells and to man. Both read it from kong's model.
package shell

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/rdmadev"
	"github.com/goverbs/verbs/uverbs"
)

// Completion is verbs completion, for kong.
type Completion struct {
	Shell string `arg:"" enum:"bash,zsh,fish" placeholder:"bash|zsh|fish" help:"Shell to print the script for: bash, zsh or fish."`
}

func (c *Completion) Help() string {
	return `Examples:

  source <(verbs completion bash)                              for this shell
  verbs completion bash >/etc/bash_completion.d/verbs          for all users
  verbs completion zsh >"${fpath[1]}/_verbs"
  verbs completion fish >~/.config/fish/completions/verbs.fish`
}

// The scripts ask verbs words, so that they know what the installed program knows.
var (
	//go:embed verbs.bash
	bash string
	//go:embed verbs.zsh
	zsh string
	//go:embed verbs.fish
	fish string
)

func (c *Completion) Run(k *kong.Context) error {
	_, err := fmt.Fprint(k.Stdout, map[string]string{"bash": bash, "zsh": zsh, "fish": fish}[c.Shell])
	return err
}

// Words is verbs words, which prints what the last word of a command line may become.
type Words struct {
	Words []string `arg:"" optional:"" passthrough:""`
}

func (c *Words) Run(k *kong.Context) error {
	words := c.Words
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	for _, word := range candidates(k.Kong, words) {
		if plain.MatchString(word) {
			fmt.Fprintln(k.Stdout, word)
		}
	}
	return nil
}

// plain matches words without meaning to a shell: names of devices may have any characters.
var plain = regexp.MustCompile(`^[0-9A-Za-z._:%@+=,-]+$`)

// candidates returns what the last of words may become: commands, options, or values of the
// option or argument.
func candidates(k *kong.Kong, words []string) []string {
	last := ""
	if n := len(words) - 1; n >= 0 {
		words, last = words[:n], words[n]
	}
	trace, _ := kong.Trace(k, words) // as far as they are a command line
	node, args := k.Model.Node, 0
	for _, p := range trace.Path {
		switch {
		case p.Command != nil:
			node, args = p.Command, 0
		case p.Positional != nil:
			args++
		}
	}
	var option *kong.Flag // which takes the next word
	if n := len(words); n > 0 {
		option = takesValue(node, words[n-1])
	}
	listens := slices.ContainsFunc(words, func(w string) bool {
		return slices.Contains([]string{"-l", "--listen", "-s", "--server"}, w)
	})
	var all []string
	switch {
	case option != nil:
		all = values(option.Value, listens)
	case strings.HasPrefix(last, "-"):
		for _, flag := range slices.Concat(node.AllFlags(true)...) {
			all = append(all, "--"+flag.Name)
		}
	default:
		for _, child := range node.Children {
			if !child.Hidden {
				all = append(all, child.Name)
			}
		}
		if node.DefaultCmd != nil && len(node.Positional) == 0 {
			node = node.DefaultCmd
		}
		if args < len(node.Positional) {
			all = append(all, values(node.Positional[args], listens)...)
		}
	}
	return slices.DeleteFunc(all, func(s string) bool { return !strings.HasPrefix(s, last) })
}

// takesValue returns the option, if its value is the next word.
func takesValue(node *kong.Node, word string) *kong.Flag {
	for _, flag := range slices.Concat(node.AllFlags(false)...) {
		if word == "--"+flag.Name || flag.Short != 0 && word == "-"+string(flag.Short) {
			if flag.IsBool() {
				return nil
			}
			return flag
		}
	}
	return nil
}

// values returns the known values of an option or argument, such as the present devices. A host is
// an address of this machine only if the command listens there.
func values(v *kong.Value, listens bool) (all []string) {
	switch name := v.Tag.PlaceHolder; {
	case v.Enum != "":
		return v.EnumSlice()
	case name == "DEVICE":
		devices, _ := rdmadev.Devices()
		for _, d := range devices {
			all = append(all, d.Name)
		}
	case name == "ADDR" || name == "HOST[:PORT]" && listens:
		devices, _ := uverbs.Devices()
		for _, d := range devices {
			addrs, _ := cm.DeviceAddrs(d)
			for _, a := range addrs {
				all = append(all, a.String())
			}
		}
	}
	return all
}
