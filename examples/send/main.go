// Command send sends a message to a server and waits until it has arrived.
package main

import (
	"context"
	"log"
	"os"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: send HOST:PORT")
	}
	if err := send(os.Args[1], "hello"); err != nil {
		log.Fatal(err)
	}
}

func send(addr, message string) error {
	ctx := context.Background()
	conn, err := cm.Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer conn.Close()

	request := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte(message)}
	if _, err := conn.QP.PostSend(request); err != nil {
		return err
	}
	if _, err := conn.SendCQ.Next(ctx); err != nil {
		return err
	}
	<-conn.Done() // a message that is under way is lost if this side closes first
	return nil
}
