package dev

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"
	"unicode"
)

// FuzzConns prints any answer of a program: an error, or text without control characters.
func FuzzConns(f *testing.F) {
	var answer []byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write(answer) }))
	f.Cleanup(server.Close)
	f.Add([]byte(`[{"Layer":"rsock","Device":"rxe7","QPNum":18,"Local":"10.0.0.1:1","Remote":"\u001b[2J","State":"open","Since":"2026-01-02T03:04:05Z",` +
		`"Waits":[{"For":"credits\u0007","Since":"0001-01-01T00:00:00Z"}],"Stats":{"Sends":{"Bytes":1e300,"\u001b[2J":-1},"Depth":0}}]`))
	f.Add([]byte(`[{"Layer":"rmsg","Device":"\u009b2J","Since":"9999-12-31T23:59:59+23:59","Waits":null,"Stats":[1]}]`))
	f.Add([]byte("<html>"))
	f.Fuzz(func(t *testing.T, b []byte) {
		answer = b
		for _, json := range []bool{false, true} {
			var out bytes.Buffer
			if (&Conns{URL: server.URL, Stats: true, JSON: json}).print(t.Context(), &out) != nil {
				continue
			}
			for _, c := range out.String() {
				if unicode.IsControl(c) && c != '\n' {
					t.Fatalf("%q prints %q", b, &out)
				}
			}
		}
	})
}
