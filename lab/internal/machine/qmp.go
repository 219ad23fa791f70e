//go:build linux

package machine

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"time"
)

// qmp is a connection to QEMU's monitor for machines.
type qmp struct {
	conn net.Conn
	in   *json.Decoder
}

func dialQMP(path string) (*qmp, error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	conn.SetDeadline(time.Now().Add(bootLimit)) // of all commands
	q := &qmp{conn, json.NewDecoder(conn)}
	var greeting map[string]any
	if err = q.in.Decode(&greeting); err == nil {
		_, err = q.do("qmp_capabilities", nil)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return q, nil
}

// do executes a command and returns QEMU's answer.
func (q *qmp) do(command string, args map[string]any) (json.RawMessage, error) {
	msg := map[string]any{"execute": command}
	if args != nil {
		msg["arguments"] = args
	}
	if err := json.NewEncoder(q.conn).Encode(msg); err != nil {
		return nil, err
	}
	for {
		var answer struct {
			Return json.RawMessage
			Error  *struct{ Desc string }
			Event  string
		}
		if err := q.in.Decode(&answer); err != nil {
			return nil, fmt.Errorf("QEMU, %s: %w", command, err)
		}
		switch {
		case answer.Error != nil:
			return nil, fmt.Errorf("QEMU, %s: %s", command, answer.Error.Desc)
		case answer.Event == "":
			return answer.Return, nil
		}
	}
}

// await repeats a command until it returns one of the statuses.
func (q *qmp) await(command string, statuses ...string) (string, error) {
	for {
		answer, err := q.do(command, nil)
		if err != nil {
			return "", err
		}
		var s struct{ Status string }
		if err := json.Unmarshal(answer, &s); err != nil || slices.Contains(statuses, s.Status) {
			return s.Status, err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

const (
	qmpSocket = "qmp"     // in the machine's folder
	running   = "running" // a status of query-status
)
