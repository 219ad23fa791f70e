// Package cli holds code that several commands of verbs share.
package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// WriteJSON writes v to w, indented.
func WriteJSON(w io.Writer, v any) error { return writeJSON(w, v, "  ") }

// WriteJSONLine writes v to w on a line.
func WriteJSONLine(w io.Writer, v any) error { return writeJSON(w, v, "") }

func writeJSON(w io.Writer, v any, indent string) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(printableJSON(b.Bytes()))
	return err
}

// JoinPort returns "host:port". A port that is part of host has precedence: host may be "a",
// "a:1", "::1", "[::1]" or "[::1]:1".
func JoinPort(host string, port int) string {
	name, own, err := net.SplitHostPort(host)
	switch {
	case err != nil:
		name = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	case own != "":
		return host
	}
	return net.JoinHostPort(name, strconv.Itoa(port))
}

// Cause returns why ctx ended, or err if it has not.
func Cause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// DeviceAddr returns the first of [DeviceAddrs].
func DeviceAddr(spec string) (netip.Addr, error) {
	addrs, err := DeviceAddrs(spec)
	if err != nil {
		return netip.Addr{}, err
	}
	return addrs[0], nil
}

// DeviceAddrs returns the addresses of the device that spec describes (see [uverbs.Find]), at least
// one: only spec itself if it is an address.
func DeviceAddrs(spec string) ([]netip.Addr, error) {
	d, err := uverbs.Find(spec)
	if err != nil {
		return nil, err
	}
	addrs, err := cm.DeviceAddrs(d)
	if err != nil {
		return nil, err
	}
	if asked, err := netip.ParseAddr(spec); err == nil && slices.Contains(addrs, asked) {
		return []netip.Addr{asked}, nil
	}
	return addrs, nil
}

// Closers are objects in the order of their creation. Close closes the last one first.
type Closers []io.Closer

// Close closes the objects and removes them from c.
func (c *Closers) Close() error {
	var errs []error
	for _, obj := range slices.Backward(*c) {
		errs = append(errs, obj.Close())
	}
	*c = nil
	return errors.Join(errs...)
}

// Own adds the result of a constructor to the objects that c closes.
func Own[T io.Closer](obj T, err error) func(c *Closers) (T, error) {
	return func(c *Closers) (T, error) {
		if err == nil {
			*c = append(*c, obj)
		}
		return obj, err
	}
}
