package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/goverbs/verbs"
)

// FuzzMessage parses datagrams of strangers: one that is accepted has an index of a path, and encodes to
// the same bytes, but for two that are reserved.
func FuzzMessage(f *testing.F) {
	b := make([]byte, messageSize)
	message{kindDelay, 1, 2, 3}.put(b)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		m, ok := parse(b)
		if !ok {
			return
		}
		again := make([]byte, messageSize)
		m.put(again)
		again[6], again[7] = b[6], b[7]
		if !bytes.Equal(again, b) || m.path >= maxPaths {
			t.Errorf("%x is taken for %+v", b, m)
		}
	})
}

// oneAnswer is an HTTP server that has one answer.
type oneAnswer []byte

func (a oneAnswer) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(a))}, nil
}

// FuzzDocument has a peer with any document: one that is accepted has as many endpoints as a host, with
// names that can be printed.
func FuzzDocument(f *testing.F) {
	good, err := json.Marshal(document{"a", 1, []remote{{"rxe0/1", verbs.QPAddr{QPNum: 2, GID: verbs.GID{15: 1}}, 3}}, map[string]int{"b": 1}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, b []byte) {
		doc, err := newAgent(&options{}, &http.Client{Transport: oneAnswer(b)}).fetch(t.Context(), "10.0.0.1:7473")
		if err != nil {
			return
		}
		for _, r := range doc.Endpoints {
			for _, c := range []byte(r.Name) {
				if c <= ' ' || c > '~' {
					t.Errorf("endpoint %q", r.Name)
				}
			}
		}
		if len(doc.Endpoints) > maxList {
			t.Errorf("%d endpoints", len(doc.Endpoints))
		}
	})
}
