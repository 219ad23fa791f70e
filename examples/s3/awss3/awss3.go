// Package awss3 lets aws-sdk-go-v2 move objects by RDMA. It is made to be copied: it has two steps of
// the SDK's stack, whose names change with the SDK.
package awss3

import (
	"context"
	"errors"
	"io"
	"net/http"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/goverbs/verbs/s3rdma"
)

// RDMA returns an option for s3.New or s3.NewFromConfig, with which GetObject, PutObject and UploadPart
// offer memory of c, each attempt for itself:
//
//	client := s3.NewFromConfig(config, awss3.RDMA(c))
func RDMA(c *s3rdma.Client) func(*s3.Options) {
	return func(o *s3.Options) {
		o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
			// What the SDK does between this step and the signature, it does with what the step makes of
			// the request: it computes no checksum if there is one, and no hash of a payload that has one.
			err := stack.Finalize.Insert(offer{c, stack}, "ResolveEndpointV2", middleware.After)
			return errors.Join(err, stack.Deserialize.Add(answer{}, middleware.After))
		})
	}
}

const id = "RDMA"

type offerKey struct{}

// offer is the step before the signature.
type offer struct {
	c     *s3rdma.Client
	stack *middleware.Stack
}

func (offer) ID() string { return id }

func (s offer) HandleFinalize(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (out middleware.FinalizeOutput, md middleware.Metadata, err error) {
	plain, ok := in.Request.(*smithyhttp.Request)
	if _, sends := s.stack.Deserialize.Get(id); !ok || !sends { // a presigned request is not sent
		return next.HandleFinalize(ctx, in)
	}
	req := plain.Build(ctx)
	if body, ok := plain.GetStream().(io.ReadCloser); ok && req.Body != nil {
		req.Body = body // so that the memory of an s3rdma.Body is not copied
	}
	o, err := s.c.Offer(req)
	if err != nil {
		return out, md, err
	}
	if o == nil {
		return next.HandleFinalize(ctx, in)
	}
	defer o.Close()
	offered, err := plain.SetStream(req.Body)
	if err != nil {
		return out, md, err
	}
	offered.Header, offered.ContentLength = req.Header, req.ContentLength
	in.Request = offered
	out, md, err = next.HandleFinalize(v4.SetPayloadHash(middleware.WithStackValue(ctx, offerKey{}, o), "UNSIGNED-PAYLOAD"), in)
	if !errors.Is(err, s3rdma.ErrResend) {
		return out, md, err
	}
	in.Request = plain
	if req.Method == http.MethodPut {
		body := o.Body()
		defer body.Close()
		if in.Request, err = plain.SetStream(body); err != nil {
			return out, md, err
		}
	}
	return next.HandleFinalize(ctx, in)
}

// answer is the step after the answer, before the SDK reads it.
type answer struct{}

func (answer) ID() string { return id }

func (answer) HandleDeserialize(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (middleware.DeserializeOutput, middleware.Metadata, error) {
	out, md, err := next.HandleDeserialize(ctx, in)
	o, ok := middleware.GetStackValue(ctx, offerKey{}).(*s3rdma.Offer)
	if !ok {
		return out, md, err
	}
	var resp *http.Response
	if r, ok := out.RawResponse.(*smithyhttp.Response); ok && err == nil {
		resp = r.Response
	}
	if resp, err = o.Answer(resp, err); err == nil {
		out.RawResponse = &smithyhttp.Response{Response: resp}
	}
	return out, md, err
}
