//go:build verbs_mute

package provider

// Mute, in programs built with the tag verbs_mute, holds commands back from the
// kernel until Unmute, so that tests/bench/native can measure posting without
// it. No other build has any of this.
func Mute() { mute = true }

// Unmute ends that, and runs the first command held back: the doorbell of the
// QP that was posted to. It covers all posts since.
func Unmute() error {
	c := held
	mute, held = false, nil
	if c == nil {
		return nil
	}
	return c.run()
}

var (
	mute bool
	held *command
)

func muted(c *command) bool {
	if mute && held == nil {
		held = c
	}
	return mute
}
