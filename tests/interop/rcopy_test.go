package interop

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// rcopyHeader is the header of rcopy's messages, in the host's byte order.
type rcopyHeader struct {
	Version, Command uint8
	Len              uint16
	Data             uint32
	ID               uint64
}

// rcopy's commands. An answer has the highest bit set.
const (
	rcopyOpen   = 1
	rcopyClose  = 2
	rcopyWrite  = 3
	rcopyAnswer = 0x80
)

const rcopyHeaderSize = 16

// rcopySend runs a Go client that copies data to a file of C's server.
func rcopySend(conn io.ReadWriter, path string, data []byte) error {
	ask := func(command uint8, mode uint32, body, extra []byte) error {
		h := rcopyHeader{Command: command, Len: uint16(rcopyHeaderSize + len(body)), Data: mode}
		if err := binary.Write(conn, binary.NativeEndian, h); err != nil {
			return err
		}
		for _, b := range [][]byte{body, extra} {
			if _, err := conn.Write(b); err != nil {
				return err
			}
		}
		if err := binary.Read(conn, binary.NativeEndian, &h); err != nil {
			return err
		}
		// C answers a write with the result of its last call, a length.
		if h.Command != command|rcopyAnswer || command != rcopyWrite && h.Data != 0 {
			return fmt.Errorf("answer %+v to command %d", h, command)
		}
		return nil
	}
	name := append([]byte(path), make([]byte, 8-len(path)%8)...)
	if err := ask(rcopyOpen, 0o644, name, nil); err != nil {
		return err
	}
	if err := ask(rcopyWrite, 0, binary.NativeEndian.AppendUint64(nil, uint64(len(data))), data); err != nil {
		return err
	}
	return ask(rcopyClose, 0, nil, nil)
}

// rcopyReceive runs a Go server that receives a file from C's client.
func rcopyReceive(conn io.ReadWriter) (path string, data []byte, err error) {
	for {
		var h rcopyHeader
		if err := binary.Read(conn, binary.NativeEndian, &h); err != nil {
			return path, data, err
		}
		body := make([]byte, h.Len-rcopyHeaderSize)
		if _, err := io.ReadFull(conn, body); err != nil {
			return path, data, err
		}
		switch h.Command {
		case rcopyOpen:
			path = string(bytes.TrimRight(body, "\x00"))
		case rcopyWrite:
			data = make([]byte, binary.NativeEndian.Uint64(body))
			if _, err := io.ReadFull(conn, data); err != nil {
				return path, data, err
			}
		}
		answer := rcopyHeader{Command: h.Command | rcopyAnswer, Len: rcopyHeaderSize, ID: h.ID}
		if err := binary.Write(conn, binary.NativeEndian, answer); err != nil || h.Command == rcopyClose {
			return path, data, err
		}
	}
}

// TestRcopy copies files with C's rcopy on either side.
func TestRcopy(t *testing.T) {
	labtest.RequireLong(t)
	labtest.Each(t, func(t *testing.T, device string) {
		data := noise(5, 2<<20+321)
		dir := t.TempDir()
		in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
		labtest.Check(t, os.WriteFile(in, data, 0o644))
		t.Run("C client", func(t *testing.T) {
			client, conn := rsAccept(t, device, rsock.Options{}, func(port string) *program {
				return start(t, "rcopy", in, labtest.AddrOf(device)+":elsewhere", "-p", port)
			})
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(40 * time.Second))
			path, got, err := rcopyReceive(conn)
			if err != nil || path != "elsewhere" || !bytes.Equal(got, data) {
				t.Errorf("%v, %q, %d bytes of %d, or others", err, path, len(got), len(data))
			}
			if n, err := conn.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("at the end: %d, %v", n, err)
			}
			client.Wait()
		})
		t.Run("C server", func(t *testing.T) {
			_, conn := rsDial(t, device, rsock.Options{}, func(port string) *program { return start(t, "rcopy", "-p", port) })
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(40 * time.Second))
			labtest.Check(t, rcopySend(conn, out, data))
			if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%v, %d bytes of %d, or others", err, len(got), len(data))
			}
		})
	})
}
