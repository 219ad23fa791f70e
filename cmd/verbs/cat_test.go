//go:build linux

package main

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestCat checks that data arrives in both directions, and that the end of the input ends
// one direction only.
func TestCat(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		addr := net.JoinHostPort(labtest.AddrOf(device), "7493")
		request, reply := make([]byte, 300000), make([]byte, 200000)
		noise := rand.NewChaCha8([32]byte{})
		noise.Read(request)
		noise.Read(reply)

		server := command(t, "cat", "-l", addr)
		var arrived, log bytes.Buffer
		server.Stdout, server.Stderr = &arrived, &log
		answer := labtest.Must(server.StdinPipe())(t)
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, func() { // often after the other direction has ended
			answer.Write(reply)
			answer.Close()
		})
		var client *exec.Cmd
		var out, errs bytes.Buffer
		for end := time.Now().Add(30 * time.Second); ; { // until the server listens
			client = command(t, "cat", "-w", "10s", "-B", "8192", addr)
			out.Reset()
			errs.Reset()
			client.Stdin, client.Stdout, client.Stderr = bytes.NewReader(request), &out, &errs
			if err := client.Start(); err != nil {
				t.Fatal(err)
			}
			refused := make(chan struct{})
			go func() {
				client.Wait()
				close(refused)
			}()
			<-refused
			if client.ProcessState.Success() || time.Now().After(end) || !strings.Contains(errs.String(), "refused") {
				break
			}
		}
		if err := server.Wait(); err != nil || !client.ProcessState.Success() {
			t.Errorf("server: %v\n%s\nclient: %v\n%s", err, &log, client.ProcessState, &errs)
		}
		if !bytes.Equal(arrived.Bytes(), request) {
			t.Errorf("%d bytes of %d arrived, or others", arrived.Len(), len(request))
		}
		if !bytes.Equal(out.Bytes(), reply) {
			t.Errorf("%d bytes of %d came back, or others", out.Len(), len(reply))
		}

		if text, err := command(t, "cat", addr).CombinedOutput(); err == nil || !strings.Contains(string(text), "refused") && !strings.Contains(string(text), "connection rejected: ") { // erdma's error for TCP's refusal
			t.Errorf("without a server: %v\n%s", err, text)
		}
		if text, err := command(t, "cat", "-l", "-w", "10ms", addr).CombinedOutput(); err == nil || !strings.Contains(string(text), "deadline") {
			t.Errorf("without a client: %v\n%s", err, text)
		}
		waiting := command(t, "cat", "-l", addr)
		messages := labtest.Must(waiting.StderrPipe())(t)
		if err := waiting.Start(); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, func() { waiting.Process.Signal(unix.SIGTERM) })
		text, _ := io.ReadAll(messages)
		if err := waiting.Wait(); err == nil || !strings.Contains(string(text), "cancel") {
			t.Errorf("interrupted: %v\n%s", err, text)
		}
	})
}
