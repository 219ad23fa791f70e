// Command hostclient has clients of package hostclient put, get and compare objects, all at once: each has a
// DC target, memory and an object of its own. It is built in the module of that package.
//
//	hostclient URL DEVICE SIZE CLIENTS
package main

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync"

	"github.com/versity/versitygw/rdma/hostclient"
)

func main() {
	err := errors.New("usage: hostclient URL DEVICE SIZE CLIENTS")
	if len(os.Args) == 5 {
		size, err1 := strconv.Atoi(os.Args[3])
		clients, err2 := strconv.Atoi(os.Args[4])
		if err = errors.Join(err1, err2); err == nil {
			err = all(os.Args[1], os.Args[2], size, clients)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// all runs the clients, which begin when all of them are there.
func all(url, device string, size, clients int) error {
	http.DefaultTransport.(*http.Transport).MaxIdleConnsPerHost = clients
	var made, done sync.WaitGroup
	errs := make([]error, clients)
	made.Add(clients)
	for i := range clients {
		done.Go(func() {
			c, err := hostclient.NewClient(device, 1, -1, hostclient.DefaultDCKey)
			made.Done()
			made.Wait()
			if err == nil {
				defer c.Close()
				err = use(c, url+strconv.Itoa(i), size)
			}
			if err != nil {
				errs[i] = fmt.Errorf("client %d: %w", i, err)
			}
		})
	}
	done.Wait()
	return errors.Join(errs...)
}

// use moves an object and parts of it.
func use(c *hostclient.Client, url string, size int) error {
	buf, err := c.Register(size)
	if err != nil {
		return err
	}
	want := make([]byte, size)
	rand.Read(want)
	copy(buf, want)
	if err := do(c, "PUT", url, "", http.StatusOK, size); err != nil {
		return err
	}
	for _, r := range [][2]int{{0, size}, {0, 1}, {size / 3, size / 2}, {size - 1, size}} {
		clear(buf)
		part, status, n := "", http.StatusOK, r[1]-r[0]
		if n < size {
			part, status = fmt.Sprintf("bytes=%d-%d", r[0], r[1]-1), http.StatusPartialContent
		}
		if err := do(c, "GET", url, part, status, n); err != nil {
			return err
		}
		if !bytes.Equal(buf[:n], want[r[0]:r[1]]) || len(bytes.Trim(buf[n:], "\x00")) > 0 {
			return fmt.Errorf("GET of bytes %d to %d: others are there, or more", r[0], r[1])
		}
	}
	return do(c, "GET", url+"-none", "", http.StatusNotFound, 0)
}

// do makes a request, whose answer must have a status and, if n is not 0, tell of n bytes by RDMA.
func do(c *hostclient.Client, method, url, part string, status, n int) error {
	token, err := c.Token()
	if err != nil {
		return err
	}
	r, err := http.NewRequest(method, url, nil)
	if err != nil {
		return err
	}
	r.Header.Set("x-amz-rdma-token", token)
	if part != "" {
		r.Header.Set("Range", part)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	resp.Body.Close()
	reply, moved := resp.Header.Get("x-amz-rdma-reply"), resp.Header.Get("x-amz-rdma-bytes-transferred")
	replied := reply == strconv.Itoa(status) || reply == "200" // as versitygw says of a part, too
	if resp.StatusCode != status || n > 0 && (!replied || moved != strconv.Itoa(n)) {
		return fmt.Errorf("%s %s %s: %s, reply %q, %s bytes moved: want %d and %d bytes", method, url, part, resp.Status, reply, moved, status, n)
	}
	return nil
}
