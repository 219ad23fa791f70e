package soak

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"

	"github.com/goverbs/verbs/rsock"
)

// serveHTTP answers GET with a stream, and POST with the checksum of what was
// posted.
func serveHTTP(s *side) (service, error) {
	l, err := listenStreams(s)
	if err != nil {
		return service{}, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{key}/{n}", func(w http.ResponseWriter, r *http.Request) {
		k, err := strconv.ParseUint(r.PathValue("key"), 16, 64)
		n, err2 := strconv.ParseInt(r.PathValue("n"), 10, 64)
		if err := errors.Join(err, err2); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		io.Copy(w, io.LimitReader(key(k).stream(), n)) // the client sees it fail
	})
	mux.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		h := crc32.New(castagnoli)
		if _, err := io.Copy(h, r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, "%08x", h.Sum32())
	})
	server := http.Server{Handler: mux}
	s.handlers.Go(func() {
		if err := server.Serve(l); err != http.ErrServerClosed {
			s.fail("http", "server", err)
		}
	})
	return service{l.Addr().String(), server.Close, nil}, nil
}

// counting counts what is read.
type counting struct {
	io.Reader
	*count
}

func (c counting) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.bytes.Add(uint64(n))
	return n, err
}

func dialHTTP(s *side, addr string, n *count) (client, error) {
	tr := &http.Transport{DialContext: new(rsock.Dialer).DialContext}
	c := http.Client{Transport: tr}
	do := func(req *http.Request, err error) (sum uint32, text string, err2 error) {
		if err != nil {
			return 0, "", err
		}
		resp, err := c.Do(req)
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return 0, "", errors.New(resp.Status)
		}
		h := crc32.New(castagnoli)
		var head [8]byte
		m, err := io.ReadFull(resp.Body, head[:])
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			err = nil
		}
		h.Write(head[:m])
		if err == nil {
			_, err = io.Copy(h, counting{resp.Body, n})
		}
		return h.Sum32(), string(head[:m]), err
	}
	life := func(ctx context.Context, r *rand.Rand) error {
		for requests := 10 + r.IntN(20); requests > 0 && !s.stopping(); requests-- {
			k, size := key(r.Uint64()), int64(r.IntN(2<<20)>>r.IntN(10))
			h := crc32.New(castagnoli)
			io.Copy(h, io.LimitReader(k.stream(), size))
			url := fmt.Sprintf("http://%s/%x/%d", addr, uint64(k), size)
			sum, _, err := do(http.NewRequestWithContext(ctx, "GET", url, nil))
			if err != nil {
				return err
			}
			if sum != h.Sum32() {
				return fmt.Errorf("GET %s: the CRC-32C is %08x, not %08x", url, sum, h.Sum32())
			}
			n.messages.Add(1)
			req, err := http.NewRequestWithContext(ctx, "POST", url, counting{io.LimitReader(k.stream(), size), n})
			_, text, err := do(req, err)
			if err != nil {
				return err
			}
			if want := fmt.Sprintf("%08x", h.Sum32()); text != want {
				return fmt.Errorf("POST %s: the CRC-32C is %s, not %s", url, text, want)
			}
			n.messages.Add(1)
		}
		tr.CloseIdleConnections()
		return nil
	}
	return client{life, func() error { tr.CloseIdleConnections(); return nil }}, nil
}
