package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// account is the only one of the server.
type account aws.Credentials

var errSignature = errors.New("the signature is not that of the server's account")

// check lets requests through that the account has signed (AWS Signature Version 4).
func (a account) check(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := a.verify(r); err != nil {
			fail(w, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// verify signs the request once more, with the headers that are signed, and compares.
func (a account) verify(r *http.Request) error {
	given := r.Header.Get("Authorization")
	_, list, _ := strings.Cut(given, "SignedHeaders=")
	list, _, _ = strings.Cut(list, ",")
	names := strings.Split(list, ";")
	again, err := http.NewRequest(r.Method, "http://"+r.Host+r.RequestURI, nil)
	if err != nil {
		return fmt.Errorf("%w: %w", errSignature, err)
	}
	for _, name := range names {
		if name == "content-length" {
			again.ContentLength = r.ContentLength
		} else if v := r.Header.Values(name); len(v) > 0 {
			again.Header[http.CanonicalHeaderKey(name)] = v
		}
	}
	// What says where the bytes are, and how they are, must be what the client has sent.
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Amz-") && !slices.Contains(names, strings.ToLower(name)) {
			return fmt.Errorf("%w: it does not cover %s", errSignature, name)
		}
	}
	date, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if age := time.Since(date); err != nil || age.Abs() > 15*time.Minute || !slices.Contains(names, "host") {
		return fmt.Errorf("%w: date %.40q, and it is %s; signed headers %.100q", errSignature, r.Header.Get("X-Amz-Date"), time.Now().UTC().Format("20060102T150405Z"), list)
	}
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	if err := signer.SignHTTP(r.Context(), aws.Credentials(a), again, r.Header.Get("X-Amz-Content-Sha256"), "s3", region, date); err != nil {
		return err
	}
	if want := again.Header.Get("Authorization"); !hmac.Equal(signature(given), signature(want)) {
		return errSignature
	}
	return nil
}

func signature(authorization string) []byte {
	_, s, _ := strings.Cut(authorization, "Signature=")
	return []byte(s)
}

// sums are the checksums of a body, and what the request has as their values.
type sums []sum

type sum struct {
	hash.Hash
	want []byte
}

// checksums returns those of a request that this server knows.
func checksums(h http.Header) (all sums) {
	add := func(name string, sum1 hash.Hash, decode func(string) ([]byte, error)) {
		if v := h.Get(name); v != "" && v != "UNSIGNED-PAYLOAD" {
			want, _ := decode(v)
			all = append(all, sum{sum1, want})
		}
	}
	add("X-Amz-Checksum-Crc32", crc32.NewIEEE(), base64.StdEncoding.DecodeString)
	add("X-Amz-Checksum-Crc32c", crc32.New(crc32.MakeTable(crc32.Castagnoli)), base64.StdEncoding.DecodeString)
	add("X-Amz-Content-Sha256", sha256.New(), hex.DecodeString)
	return all
}

// beside returns a writer to w and to the checksums.
func (all sums) beside(w io.Writer) io.Writer {
	to := []io.Writer{w}
	for _, s := range all {
		to = append(to, s)
	}
	return io.MultiWriter(to...)
}

func (all sums) match() bool {
	return !slices.ContainsFunc(all, func(s sum) bool { return !bytes.Equal(s.Sum(nil), s.want) })
}
