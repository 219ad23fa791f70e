package verbs

import "testing"

// TestQPCap checks the defaults of fields that are zero or negative.
func TestQPCap(t *testing.T) {
	for c, want := range map[QPCap]QPCap{
		{}:                               {64, 64, 2, 2, 64},
		{MaxSendWR: 128}:                 {128, 64, 2, 2, 64},
		{1, 2, 3, 4, 5}:                  {1, 2, 3, 4, 5},
		{MaxRecvWR: -1, MaxInline: -1}:   {64, 0, 2, 2, 0},
		{-1, -1, -1, -1, -1}:             {},
		{MaxSendSGE: 4, MaxRecvSGE: -10}: {64, 64, 4, 0, 64},
	} {
		if got := c.WithDefaults(); got != want {
			t.Errorf("%+v stands for %+v, not %+v", c, got, want)
		}
	}
}
