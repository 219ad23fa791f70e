//go:build race

package rmsg_test

const raceEnabled = true
