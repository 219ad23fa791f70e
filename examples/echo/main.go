// Command echo sends a line to a server, which sends it back, over RDMA.
//
//	echo serve 10.9.0.1:7000
//	echo 10.9.0.1:7000 hello
package main

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/goverbs/verbs/rsock"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: echo serve ADDRESS:PORT | echo ADDRESS:PORT TEXT")
	}
	var err error
	if os.Args[1] == "serve" {
		err = serve(os.Args[2])
	} else {
		err = send(os.Args[1], os.Args[2])
	}
	if err != nil {
		log.Fatal(err)
	}
}

func serve(addr string) error {
	l, err := rsock.Listen("rdma", addr)
	if err != nil {
		return err
	}
	fmt.Println("listening on", l.Addr())
	for {
		conn, err := l.Accept() // a net.Conn
		if e, ok := err.(interface{ Temporary() bool }); ok && e.Temporary() {
			log.Print(err) // of this connection, or for lack of files: the listener continues
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			io.Copy(conn, conn)
		}()
	}
}

func send(addr, text string) error {
	conn, err := rsock.Dial("rdma", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := fmt.Fprintln(conn, text); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	fmt.Print(line)
	return err
}
