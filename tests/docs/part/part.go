// Package part replaces the parts of hand-written pages that programs generate.
package part

import (
	"fmt"
	"log"
	"os"
	"strings"
)

// End ends each part.
const End = "<!-- end -->\n"

// Begin returns the line before the part that a command writes, such as "make faults".
func Begin(command string) string { return "<!-- written by " + command + " -->\n" }

// Replace replaces the part that the command wrote before by text.
func Replace(page, command, text string) (string, error) {
	begin := Begin(command)
	before, rest, ok := strings.Cut(page, begin)
	_, after, closed := strings.Cut(rest, End)
	if !ok || !closed {
		return "", fmt.Errorf("the page has no place for what %s writes", command)
	}
	return before + begin + text + End + after, nil
}

// Main runs a program with two arguments, the files of rows and of a page: it converts the
// rows by markdown to the command's part of the page.
func Main(command string, markdown func(rows string) (string, error)) {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatalf("usage: %s rows page", os.Args[0])
	}
	if err := run(os.Args[1], os.Args[2], command, markdown); err != nil {
		log.Fatal(err)
	}
}

func run(rows, page, command string, markdown func(string) (string, error)) error {
	text, err := os.ReadFile(rows)
	if err != nil {
		return err
	}
	part, err := markdown(string(text))
	if err != nil {
		return err
	}
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	composed, err := Replace(string(old), command, part)
	if err != nil {
		return err
	}
	return os.WriteFile(page, []byte(composed), 0o644)
}
