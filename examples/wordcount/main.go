// Command wordcount sends files to a server, which counts their lines, words and bytes.
// It uses package rsock: RDMA if it is available, else TCP.
//
//	wordcount serve ADDR
//	wordcount [-v] ADDR FILE...
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"time"
	"unicode"

	"github.com/goverbs/verbs/rsock"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
)

const fileTimeout = time.Minute // for each file

func main() {
	log.SetFlags(0)
	verbose := flag.Bool("v", false, "print the figures of RDMA connections")
	flag.Parse()
	if flag.NArg() < 2 {
		log.Fatal("usage: wordcount serve ADDR | [-v] ADDR FILE...")
	}
	if flag.Arg(0) == "serve" {
		log.Fatal(serve(flag.Arg(1)))
	}
	for _, name := range flag.Args()[1:] {
		if err := count(flag.Arg(0), name, *verbose); err != nil {
			log.Fatal(err)
		}
	}
}

func serve(addr string) error {
	l, err := (&rsock.ListenConfig{Fallback: rsock.FallbackMissing}).Listen(context.Background(), "tcp", addr)
	if err != nil {
		return err
	}
	fmt.Println("listening on", l.Addr())
	for {
		c, err := l.Accept()
		if t, ok := err.(interface{ Temporary() bool }); ok && t.Temporary() {
			log.Print(err) // for example no memory for a connection
			time.Sleep(100 * time.Millisecond)
		} else if err != nil {
			return err
		} else {
			go func() {
				if err := answer(c); err != nil {
					log.Print(err)
				}
			}()
		}
	}
}

// answer reads until the client closes its side for writing, and writes the counts.
func answer(c net.Conn) error {
	c.SetDeadline(time.Now().Add(fileTimeout))
	var lines, words, size int
	inWord := false
	chunk := make([]byte, 64<<10)
	for {
		n, err := c.Read(chunk)
		for _, b := range chunk[:n] {
			if b == '\n' {
				lines++
			}
			space := unicode.IsSpace(rune(b))
			if !space && !inWord {
				words++
			}
			inWord = !space
		}
		size += n
		if err == io.EOF {
			_, err = fmt.Fprintln(c, lines, words, size)
			return errors.Join(err, c.Close())
		} else if err != nil {
			return errors.Join(err, c.Close())
		}
	}
}

func count(addr, name string, verbose bool) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	c, err := (&rsock.Dialer{Fallback: rsock.FallbackMissing}).Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(fileTimeout))
	if _, err := io.Copy(c, f); err != nil {
		return err
	}
	// Both *rsock.Conn and *net.TCPConn have CloseWrite.
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return err
	}
	var lines, words, size int
	if _, err := fmt.Fscanln(c, &lines, &words, &size); err != nil {
		return fmt.Errorf("read the answer of %s: %w", addr, err)
	}
	fmt.Println(lines, words, size, name, "by", c.RemoteAddr().Network())
	if rc, ok := c.(*rsock.Conn); ok && verbose {
		log.Printf("%+v", rc.Stats())
	}
	return nil
}
