package soft_test

import (
	"fmt"
	"log"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/soft"
)

func Example() {
	dev, err := soft.New(soft.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	transport := &cm.Transport{Host: dev}
	defer transport.Close()
	c, err := (&rsock.Dialer{Transport: transport}).Dial("rdma", "10.9.0.1:7471")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintln(c, "hello")
}
