// Package sigv4 signs requests to S3 servers, for tests.
package sigv4

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

const region = "us-east-1"

// Signer returns a function that signs requests (AWS Signature Version 4) with all their X-Amz- headers,
// and the hash of the body that they have, or of none. Longer bodies are not signed.
func Signer(access, secret string) func(*http.Request) error {
	return func(r *http.Request) error {
		now := time.Now().UTC()
		sum := cmp.Or(r.Header.Get("X-Amz-Content-Sha256"), hash(""))
		if r.ContentLength > 0 {
			sum = "UNSIGNED-PAYLOAD"
		}
		r.Header.Set("X-Amz-Date", now.Format("20060102T150405Z"))
		r.Header.Set("X-Amz-Content-Sha256", sum)
		lines := []string{"host:" + r.URL.Host}
		for name := range r.Header {
			if name = strings.ToLower(name); strings.HasPrefix(name, "x-amz-") {
				lines = append(lines, name+":"+r.Header.Get(name))
			}
		}
		slices.Sort(lines)
		var names []string
		for _, l := range lines {
			name, _, _ := strings.Cut(l, ":")
			names = append(names, name)
		}
		signed := strings.Join(names, ";")
		canonical := hash(strings.Join([]string{r.Method, r.URL.EscapedPath(), r.URL.RawQuery, strings.Join(lines, "\n") + "\n", signed, sum}, "\n"))
		scope := now.Format("20060102") + "/" + region + "/s3/aws4_request"
		key := []byte("AWS4" + secret)
		for _, part := range append(strings.Split(scope, "/"), fmt.Sprintf("AWS4-HMAC-SHA256\n%s\n%s\n%s", now.Format("20060102T150405Z"), scope, canonical)) {
			h := hmac.New(sha256.New, key)
			h.Write([]byte(part))
			key = h.Sum(nil)
		}
		r.Header.Set("Authorization", fmt.Sprintf("AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%x", access, scope, signed, key))
		return nil
	}
}

func hash(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}
