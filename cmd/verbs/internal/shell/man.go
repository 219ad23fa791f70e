package shell

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/goverbs/verbs"
)

// Man is verbs man, for kong.
type Man struct{}

func (c *Man) Help() string {
	return `Examples:

  verbs man | man -l -                               read it
  verbs man >/usr/local/share/man/man1/verbs.1       install it`
}

func (c *Man) Run(k *kong.Context) error {
	_, err := k.Stdout.Write([]byte(page(k.Model)))
	return err
}

// page returns the manual page, in the macros of man(7).
func page(app *kong.Application) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line(`.TH VERBS 1 "" "verbs %s" "User Commands"`, roff(verbs.Version))
	line(".SH NAME\nverbs \\- %s", roff(strings.TrimSuffix(app.Help, ".")))
	line(".SH SYNOPSIS\n.B verbs\n.I COMMAND\n[\\fIOPTION\\fR]...")
	line(".SH COMMANDS")
	described := map[string]string{} // the first command with some options
	for _, node := range app.Leaves(true) {
		line(".SS %s", roff(strings.TrimSuffix(node.Summary(), " [flags]")))
		line("%s", roff(help(node)))
		b.WriteString(prose(node.Detail))
		for _, arg := range node.Positional {
			line(".TP\n.I %s\n%s", roff(arg.Summary()), roff(arg.Help))
		}
		flags := describe(slices.Concat(node.AllFlags(true)[1:]...)) // without the application's
		if first, ok := described[flags]; ok && flags != "" {
			line(".PP\nThe options are those of\n.BR %s .", roff(strings.ReplaceAll(first, " ", "\u00a0")))
			continue
		}
		described[flags] = node.Path()
		b.WriteString(flags)
	}
	line(".SH OPTIONS\nEach command has these, too:")
	b.WriteString(describe(app.Flags))
	line(".SH OUTPUT AND EXIT STATUS")
	b.WriteString(prose(app.Detail))
	line(".SH SEE ALSO\n.BR rping (1),\n.BR ibv_devinfo (1),\n.BR rdma (8)")
	return b.String()
}

// help returns the description of a command, with its parents' in front for verbs perf send lat.
func help(node *kong.Node) string {
	text := node.Help
	for up := node.Parent; up != nil && up.Type == kong.CommandNode; up = up.Parent {
		if up.Parent != nil && up.Parent.Type == kong.CommandNode {
			text = up.Help + " " + text
		}
	}
	return text
}

// describe returns the paragraphs of the flags.
func describe(flags []*kong.Flag) string {
	var b strings.Builder
	for _, flag := range flags {
		fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(flag.String()), roff(flag.Help))
	}
	return b.String()
}

// prose returns text in paragraphs; only lines that are indented, such as examples, keep their
// breaks.
func prose(text string) string {
	var b strings.Builder
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		switch {
		case paragraph == "":
		case strings.HasPrefix(paragraph, " "):
			b.WriteString(".PP\n.nf\n" + roff(paragraph) + "\n.fi\n")
		default:
			b.WriteString(".PP\n" + roff(paragraph) + "\n")
		}
	}
	return b.String()
}

var (
	special = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\u00a0", `\ `)
	control = regexp.MustCompile(`(?m)^[.']`)
)

// roff quotes text.
func roff(text string) string { return control.ReplaceAllString(special.Replace(text), `\&$0`) }
