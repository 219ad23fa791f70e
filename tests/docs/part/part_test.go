package part

import "testing"

func TestReplace(t *testing.T) {
	begin := Begin("make it")
	for _, page := range [][2]string{
		{"a\n", "b\n" + End},        // another part follows
		{"a\n" + End, "b\n"},        // or is before
		{"a\n" + Begin("x"), "b\n"}, // of another command
	} {
		got, err := Replace(page[0]+begin+"old\n"+End+page[1], "make it", "new\n")
		if want := page[0] + begin + "new\n" + End + page[1]; err != nil || got != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	for _, page := range []string{"a\n" + End, begin, "nothing"} {
		if _, err := Replace(page, "make it", "new\n"); err == nil {
			t.Errorf("%q has a place", page)
		}
	}
}
