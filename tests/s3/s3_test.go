package s3

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

func TestMain(m *testing.M) { labtest.Main(m) }

// The account of both programs.
const access, secret = "verbs", "secret-of-verbs"

// sign signs a request without a body for S3 (AWS4-HMAC-SHA256), with all its X-Amz- headers.
func sign(r *http.Request) {
	hash := func(s string) string {
		h := sha256.Sum256([]byte(s))
		return hex.EncodeToString(h[:])
	}
	now, payload := time.Now().UTC().Format("20060102T150405Z"), hash("")
	r.Header.Set("X-Amz-Date", now)
	r.Header.Set("X-Amz-Content-Sha256", payload)
	lines, names := []string{"host:" + r.URL.Host}, []string{"host"}
	for name := range r.Header {
		if name = strings.ToLower(name); strings.HasPrefix(name, "x-amz-") {
			lines, names = append(lines, name+":"+r.Header.Get(name)), append(names, name)
		}
	}
	slices.Sort(lines)
	slices.Sort(names)
	signed := strings.Join(names, ";")
	request := strings.Join([]string{r.Method, r.URL.EscapedPath(), r.URL.RawQuery, strings.Join(lines, "\n") + "\n", signed, payload}, "\n")
	scope := now[:8] + "/us-east-1/s3/aws4_request"
	key := []byte("AWS4" + secret)
	for _, part := range append(strings.Split(scope, "/"), "AWS4-HMAC-SHA256\n"+now+"\n"+scope+"\n"+hash(request)) {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(part))
		key = h.Sum(nil)
	}
	r.Header.Set("Authorization", fmt.Sprintf("AWS4-HMAC-SHA256 Credential=%s/%s,SignedHeaders=%s,Signature=%x", access, scope, signed, key))
}
