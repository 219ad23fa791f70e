package verbstest_test

import (
	"io"
	"os"
	"testing"
)

// TestExamples runs the examples that need a test, and compares what they print.
func TestExamples(tt *testing.T) {
	for _, e := range []struct {
		name string
		run  func()
		want string
	}{
		{"Remove", ExampleNetwork_Remove, "5 work completion: transport retries exceeded\n"},
		{"Partition", ExampleNetwork_Partition, "1000 1000 <nil> true\n"},
		{"Nth", ExampleNth, "10 10 <nil> true\n"},
	} {
		tt.Run(e.name, func(tt *testing.T) {
			t = tt
			if got := printed(tt, e.run); got != e.want {
				tt.Errorf("printed %q, not %q", got, e.want)
			}
		})
	}
	ExampleFilter()
	ExampleNetwork_SetLink()
}

// printed returns what f prints to the standard output.
func printed(t *testing.T, f func()) string {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	stdout := os.Stdout
	os.Stdout = w
	defer func() { os.Stdout = stdout }()
	f()
	w.Close()
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
