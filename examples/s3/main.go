// Command s3 stores objects as S3 does, and moves their bytes by RDMA, in the protocol that object
// stores and their clients speak: a request has a token of the client's memory, which the server reads
// or writes, and HTTP the rest. Its client is an SDK, aws-sdk-go-v2 or minio-go. Requests without a token
// are HTTP alone, so curl works as well.
//
//	s3 serve [-d DEVICE] 192.0.2.1:9000 FOLDER
//	s3 put [-d DEVICE] [-sdk minio] http://192.0.2.1:9000 BUCKET/KEY FILE
//	s3 get [-d DEVICE] [-sdk minio] http://192.0.2.1:9000 BUCKET/KEY FILE
//
// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are the account of all of them. On one machine without RDMA:
//
//	export AWS_ACCESS_KEY_ID=key AWS_SECRET_ACCESS_KEY=secret
//	VERBS_SOFT=127.0.0.1 s3 serve 127.0.0.1:9000 /tmp/objects
//	VERBS_SOFT=127.0.0.2 s3 put http://127.0.0.1:9000 bucket/key FILE
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/minio/minio-go/v7"
	miniocreds "github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/goverbs/verbs/examples/s3/awss3"
	"github.com/goverbs/verbs/examples/s3/minios3"
	"github.com/goverbs/verbs/s3rdma"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
	"github.com/goverbs/verbs/uverbs"
)

const (
	partSize = 8 << 20
	region   = "us-east-1"
)

func main() {
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	flags := flag.NewFlagSet("s3", flag.ExitOnError)
	device := flags.String("d", "", "RDMA `device`, by its name or address; by default the first")
	sdk := flags.String("sdk", "aws", "`name` of the SDK: aws or minio")
	owner := account{AccessKeyID: os.Getenv("AWS_ACCESS_KEY_ID"), SecretAccessKey: os.Getenv("AWS_SECRET_ACCESS_KEY")}
	err := errors.New("usage: s3 serve [-d DEVICE] ADDR FOLDER | put [-d DEVICE] [-sdk aws|minio] URL BUCKET/KEY FILE | get [-d DEVICE] [-sdk aws|minio] URL BUCKET/KEY FILE")
	if len(os.Args) > 1 {
		flags.Parse(os.Args[2:])
		switch arg := flags.Arg; {
		case owner.AccessKeyID == "" || owner.SecretAccessKey == "":
			err = errors.New("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the same for server and clients")
		case os.Args[1] == "serve" && flags.NArg() == 2:
			err = serve(ctx, owner, *device, arg(0), arg(1))
		case (os.Args[1] == "put" || os.Args[1] == "get") && flags.NArg() == 3:
			err = copyFile(ctx, owner, *device, *sdk, os.Args[1], arg(0), arg(1), arg(2))
		}
	}
	if err != nil {
		log.Fatal(err)
	}
}

func serve(ctx context.Context, owner account, device, addr, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	dev, err := uverbs.Open(device)
	if err != nil {
		return err
	}
	defer dev.Close()
	rdma, err := s3rdma.NewServer(s3rdma.ServerOptions{Device: dev, Logger: slog.Default()})
	if err != nil {
		return err
	}
	defer rdma.Close()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Println("listening on", l.Addr())
	web := &http.Server{
		Handler:           withRDMA(rdma, owner, objects(root)),
		ReadHeaderTimeout: 10 * time.Second, // idle clients do not keep their connections
		IdleTimeout:       2 * time.Minute,
	}
	stopped := make(chan error, 1)
	context.AfterFunc(ctx, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		stopped <- web.Shutdown(ctx)
	})
	if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped // requests may end
}

// copyFile puts a file, in parts if it is long, or gets an object to one.
func copyFile(ctx context.Context, owner account, device, sdk, op, endpoint, name, file string) error {
	bucket, key, _ := strings.Cut(name, "/")
	u, err := url.Parse(endpoint)
	if err != nil {
		return err
	}
	// The server sends to the address that requests come from, and to no other.
	var local net.Dialer
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = local.DialContext
	c, err := s3rdma.NewClient(s3rdma.ClientOptions{Device: device, GetSize: partSize, Do: (&http.Client{Transport: transport}).Do, Logger: slog.Default()})
	if err != nil {
		return err
	}
	if addr := c.Addr(); !addr.IsLinkLocalUnicast() { // as it is on InfiniBand
		local.LocalAddr = &net.TCPAddr{IP: addr.AsSlice()}
	}
	err = withFile(op, file, func(f *os.File) error {
		if sdk == "minio" {
			return byMinIO(ctx, owner, c, transport, op, u, bucket, key, f)
		}
		return byAWS(ctx, owner, c, transport, op, endpoint, bucket, key, f)
	})
	st := c.Stats()
	if err = errors.Join(err, c.Close()); err == nil {
		fmt.Printf("%d bytes by RDMA, in %d requests; %d requests by HTTP\n", st.PutBytes+st.GetBytes, st.Puts+st.Gets, fallbacks(st))
	}
	return err
}

// withFile copies from a file, or to one, which stays as it is if a get fails.
func withFile(op, name string, copy func(*os.File) error) error {
	if op == "put" {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		return copy(f)
	}
	f, err := os.Create(name + ".part")
	if err != nil {
		return err
	}
	if err = errors.Join(copy(f), f.Close()); err == nil {
		return os.Rename(f.Name(), name)
	}
	os.Remove(f.Name())
	return err
}

func getRange(ctx context.Context, client minio.Core, bucket, key string, opt minio.GetObjectOptions, f *os.File) error {
	body, _, _, err := client.GetObject(ctx, bucket, key, opt)
	if err == nil {
		_, err = f.ReadFrom(body)
		body.Close()
	}
	return err
}

func fallbacks(st s3rdma.ClientStats) (n uint64) {
	for _, v := range st.Fallbacks {
		n += v
	}
	return n
}

// byAWS copies by aws-sdk-go-v2, with its manager of transfers in parts.
func byAWS(ctx context.Context, owner account, c *s3rdma.Client, rt http.RoundTripper, op, endpoint, bucket, key string, f *os.File) error {
	client := s3.New(s3.Options{
		BaseEndpoint: aws.String(endpoint), Region: region, UsePathStyle: true, HTTPClient: &http.Client{Transport: rt},
		Credentials: credentials.NewStaticCredentialsProvider(owner.AccessKeyID, owner.SecretAccessKey, ""),
	}, awss3.RDMA(c))
	parts := transfermanager.New(client, func(o *transfermanager.Options) {
		o.PartSizeBytes, o.GetObjectType = partSize, types.GetObjectRanges
	})
	if op == "put" {
		_, err := parts.UploadObject(ctx, &transfermanager.UploadObjectInput{Bucket: &bucket, Key: &key, Body: f})
		return err
	}
	_, err := parts.DownloadObject(ctx, &transfermanager.DownloadObjectInput{Bucket: &bucket, Key: &key, WriterAt: f})
	return err
}

// byMinIO copies by minio-go.
func byMinIO(ctx context.Context, owner account, c *s3rdma.Client, rt http.RoundTripper, op string, u *url.URL, bucket, key string, f *os.File) error {
	opt := minios3.Options(&s3rdma.Transport{Base: rt, Client: c}, miniocreds.NewStaticV4(owner.AccessKeyID, owner.SecretAccessKey, ""), region, u.Scheme == "https")
	client, err := minio.New(u.Host, opt)
	if err != nil {
		return err
	}
	if op == "put" {
		info, err := f.Stat()
		if err == nil {
			_, err = client.PutObject(ctx, bucket, key, f, info.Size(), minio.PutObjectOptions{PartSize: partSize})
		}
		return err
	}
	// Object of minio-go gets all in one request; in ranges, each fits into the memory of one.
	info, err := client.StatObject(ctx, bucket, key, minio.StatObjectOptions{})
	for off := int64(0); err == nil && off < info.Size; off += partSize {
		var opt minio.GetObjectOptions
		// All ranges are of one object, or the server answers 412.
		if err = errors.Join(opt.SetMatchETag(info.ETag), opt.SetRange(off, min(off+partSize, info.Size)-1)); err == nil {
			err = getRange(ctx, minio.Core{Client: client}, bucket, key, opt, f)
		}
	}
	return err
}
