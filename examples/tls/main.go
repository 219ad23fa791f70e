// Command tls sends a line to a server, which sends it back, encrypted by TLS: over RDMA if it
// is available, else over TCP. RDMA itself does not encrypt. The server makes a certificate for
// itself, and the client gets its fingerprint as an argument.
//
//	tls serve 10.9.0.1:7000                   # prints the fingerprint
//	tls 10.9.0.1:7000 FINGERPRINT hello
package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"os"
	"time"

	"github.com/goverbs/verbs/rsock"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
)

func main() {
	log.SetFlags(0)
	err := errors.New("usage: tls serve ADDR | tls ADDR FINGERPRINT TEXT")
	switch args := os.Args[1:]; {
	case len(args) == 2 && args[0] == "serve":
		err = serve(args[1])
	case len(args) == 3:
		err = send(args[0], args[1], args[2])
	}
	if err != nil {
		log.Fatal(err)
	}
}

func serve(addr string) error {
	cert, err := certificate()
	if err != nil {
		return err
	}
	lc := rsock.ListenConfig{Fallback: rsock.FallbackMissing}
	inner, err := lc.Listen(context.Background(), "rdma", addr)
	if err != nil {
		return err
	}
	l := tls.NewListener(inner, &tls.Config{Certificates: []tls.Certificate{cert}})
	fmt.Println("listening on", l.Addr())
	fmt.Printf("%x\n", sha256.Sum256(cert.Certificate[0]))
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			if _, err := io.Copy(conn, conn); err != nil { // the first read does the handshake
				log.Printf("%v: %v", conn.RemoteAddr(), err)
			}
		}()
	}
}

// certificate returns a certificate that is valid for a day, signed by itself.
func certificate() (c tls.Certificate, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

func send(addr, fingerprint, text string) error {
	dialer := rsock.Dialer{Fallback: rsock.FallbackMissing}
	inner, err := dialer.Dial("rdma", addr)
	if err != nil {
		return err
	}
	conn := tls.Client(inner, &tls.Config{
		InsecureSkipVerify: true, // VerifyConnection verifies instead
		VerifyConnection: func(state tls.ConnectionState) error {
			if fmt.Sprintf("%x", sha256.Sum256(state.PeerCertificates[0].Raw)) != fingerprint {
				return errors.New("the server has another certificate")
			}
			return nil
		},
	})
	defer conn.Close()
	if _, err := fmt.Fprintln(conn, text); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	fmt.Printf("%s by %s, %s", tls.VersionName(conn.ConnectionState().Version), inner.RemoteAddr().Network(), line)
	return nil
}
