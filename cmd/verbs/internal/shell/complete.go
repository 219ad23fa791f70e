// Package shell implements verbs completion and verbs man, which describe the command line
// to shells and to man. Both read it from kong's model.
package shell

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

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
	for _, word := range candidates(k.Model.Node, words) {
		fmt.Fprintln(k.Stdout, word)
	}
	return nil
}

// candidates returns what the last of words may become: commands, options, or values of the
// option before it.
func candidates(node *kong.Node, words []string) []string {
	var option *kong.Flag // which takes the next word
	last := ""
	if n := len(words) - 1; n >= 0 {
		words, last = words[:n], words[n]
	}
	for _, word := range words {
		switch {
		case option != nil:
			option = nil
		case strings.HasPrefix(word, "-"):
			option = takesValue(node, word)
		default:
			for _, child := range node.Children {
				if child.Name == word {
					node = child
				}
			}
		}
	}
	var all []string
	switch {
	case option != nil:
		all = values(option.Value)
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
		for _, arg := range node.Positional {
			all = append(all, values(arg)...)
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

// values returns the values that an option or argument may have, if they are known.
func values(v *kong.Value) []string {
	switch {
	case v.Enum != "":
		return v.EnumSlice()
	case v.Tag.PlaceHolder != "DEVICE":
		return nil
	}
	devices, err := uverbs.Devices()
	if err != nil {
		return nil
	}
	var names []string
	for _, d := range devices {
		names = append(names, d.Name)
	}
	return names
}
