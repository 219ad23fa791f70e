package main

import "github.com/goverbs/verbs/provider"

func mute()         { provider.Mute() }
func unmute() error { return provider.Unmute() }
