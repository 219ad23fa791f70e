package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

const (
	rowsFile = "docs/test-parts.json"
	pageFile = "docs/test-parts.md"
)

// row is a run of a part.
type row struct {
	Part    string   `json:"part"`
	Commit  string   `json:"commit"`
	Date    string   `json:"date"` // UTC
	Machine string   `json:"machine"`
	Load    string   `json:"load"`
	Minutes float64  `json:"minutes"`
	Errors  []string `json:"errors,omitempty"`
	count
}

func (r row) ok() bool { return len(r.Errors) == 0 && len(r.Failed) == 0 }

func (r row) skipped() (n int) {
	for _, of := range r.Skipped {
		n += of
	}
	return n
}

func (r row) String() string {
	s := fmt.Sprintf("%s: %.0f min, %d passed, %d failed, %d skipped", r.Part, r.Minutes, r.Passed, len(r.Failed), r.skipped())
	for _, text := range slices.Concat(r.Errors, r.Failed) {
		s += "\n\t" + text
	}
	return s
}

// record adds rows to the file, from which it drops what is older than a part's last run, but for the last that
// passed, and writes the page.
func record(more ...row) error {
	rows, err := readRows()
	if err != nil {
		return err
	}
	rows = keep(append(rows, more...))
	var text bytes.Buffer
	for _, r := range rows {
		line, err := json.Marshal(r)
		if err != nil {
			return err
		}
		text.Write(append(line, '\n'))
	}
	return errors.Join(os.WriteFile(rowsFile, text.Bytes(), 0o666), os.WriteFile(pageFile, []byte(page(rows)), 0o666))
}

func readRows() (rows []row, err error) {
	text, err := os.ReadFile(rowsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for line := range bytes.Lines(text) {
		var r row
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", rowsFile, err)
		}
		rows = append(rows, r)
	}
	return rows, err
}

// keep returns the last row of each part, and the last that passed.
func keep(rows []row) (kept []row) {
	last, passed := map[string]bool{}, map[string]bool{}
	for _, r := range slices.Backward(rows) {
		if !last[r.Part] || r.ok() && !passed[r.Part] {
			kept = append(kept, r)
		}
		last[r.Part] = true
		passed[r.Part] = passed[r.Part] || r.ok()
	}
	slices.Reverse(kept)
	return kept
}

// page returns the page that shows the rows.
func page(rows []row) string {
	var s strings.Builder
	fmt.Fprintf(&s, `# When each test last passed

`+"`make test-all`"+` runs all tests in these parts, of at most %.0f minutes each on two processors without KVM, and adds a row
for each to [test-parts.json](test-parts.json); `+"`make test-all PART=fuzz-1`"+` runs one. This page is written from the rows.
A commit with + had changes. Empty cells: not yet.

| part | covers | last passed (UTC) | commit | minutes | load | passed | skipped | last run, if it failed |
|---|---|---|---|--:|---|--:|--:|---|
`, limit.Minutes())
	var reasons []string
	for _, p := range parts {
		var last, passed row
		for _, r := range rows {
			if r.Part != p.name {
				continue
			}
			if last = r; r.ok() {
				passed = r
			}
		}
		cells := []string{p.name, p.covers, "", "", "", "", "", "", ""}
		if passed.Part != "" {
			copy(cells[2:], []string{passed.Date, passed.Commit, fmt.Sprintf("%.0f", passed.Minutes), passed.Load,
				fmt.Sprint(passed.Passed), fmt.Sprint(passed.skipped())})
		}
		if last.Part != "" && !last.ok() {
			cells[8] = fmt.Sprintf("%s, %s, %.0f min: %s", last.Date, last.Commit, last.Minutes, strings.Join(slices.Concat(last.Errors, last.Failed), "; "))
		}
		fmt.Fprintf(&s, "| %s |\n", strings.Join(cells, " | "))
		if last.skipped() == 0 {
			continue
		}
		var list []string
		for _, reason := range last.reasons() {
			list = append(list, fmt.Sprintf("%d × %s", last.Skipped[reason], strings.ReplaceAll(reason, "|", `\|`)))
		}
		reasons = append(reasons, fmt.Sprintf("| %s | %s |\n", p.name, strings.Join(list, "<br>")))
	}
	if len(reasons) > 0 {
		fmt.Fprintf(&s, "\nTests that the last run of a part skipped, and why:\n\n| part | skipped |\n|---|---|\n%s", strings.Join(reasons, ""))
	}
	var machines []string
	for _, r := range rows {
		if !slices.Contains(machines, r.Machine) {
			machines = append(machines, r.Machine)
		}
	}
	if len(machines) > 0 {
		fmt.Fprintf(&s, "\nMachines: %s.\n", strings.Join(machines, "; "))
	}
	return s.String()
}
