// Package minios3 lets minio-go move objects by RDMA. It is made to be copied.
//
// minio-go signs requests before its Transport gets them, and has no hook in front of that. So it gets
// no credentials: the Transport has them, and signs by minio-go's own signer. Presigned URLs need a
// client of their own, with credentials.
package minios3

import (
	"net/http"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/signer"

	"github.com/goverbs/verbs/s3rdma"
)

// Options returns options for minio.New with which GetObject, PutObject and the parts of uploads offer
// memory of t's Client. It sets t.Sign. A server without regions has us-east-1.
func Options(t *s3rdma.Transport, creds *credentials.Credentials, region string, secure bool) *minio.Options {
	t.Sign = func(r *http.Request) error {
		v, err := creds.GetWithContext(&credentials.CredContext{Client: &http.Client{Transport: t.Base}, Endpoint: r.URL.Scheme + "://" + r.URL.Host})
		if err != nil {
			return err
		}
		if r.Header.Get("X-Amz-Content-Sha256") == "" {
			r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
		}
		signer.SignV4(*r, v.AccessKeyID, v.SecretAccessKey, v.SessionToken, region) // it sets headers of r
		return nil
	}
	anonymous := credentials.NewStatic("", "", "", credentials.SignatureAnonymous)
	return &minio.Options{Creds: anonymous, Secure: secure, Region: region, Transport: t}
}
