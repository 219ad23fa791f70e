package interop

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

var (
	buildClient = compile("rdma_client", "testdata/rdma_example.c", "-lrdmacm", "-libverbs")
	buildServer = compile("rdma_server", "-DSERVER", "testdata/rdma_example.c", "-lrdmacm", "-libverbs")
)

// sides returns the programs of rdma-example, by language.
func sides(t *testing.T) (clients, servers map[string]string) {
	t.Helper()
	labtest.RequireKernel(t)
	return map[string]string{"C": labtest.Must(buildClient())(t), "Go": built(t, "client")},
		map[string]string{"C": labtest.Must(buildServer())(t), "Go": built(t, "server")}
}

// The output of the programs of rdma-example.
const (
	bufferAttr = `---------------------------------------------------------
buffer attr, addr: 0xADDR , len: %[3]d , stag : 0xKEY 
---------------------------------------------------------
`
	clientPrints = `Passed string is : %[4]s , with count %[3]d 
Trying to connect to server at : %[1]s port: %[2]s 
The client is connected successfully 
` + bufferAttr + `...
SUCCESS, source and destination buffers match 
Client resource clean up is complete 
`
	serverPrints = `Server is listening successfully at: %[5]s , port: %[2]s 
A new connection is accepted from %[1]s 
Client side buffer information is received...
` + bufferAttr + `The client has requested buffer length of : %[3]d bytes 
A disconnect event is received from the client...
Server shut-down is complete 
`
	clientUsage = `Usage:
rdma_client: [-a <server_addr>] [-p <server_port>] -s string (required)
(default IP is 127.0.0.1 and port is 20886)
`
	serverUsage = `Usage:
rdma_server: [-a <server_addr>] [-p <server_port>]
(default port is 20886)
`
)

var (
	address = regexp.MustCompile(`addr: 0x[0-9a-f]+ `)
	key     = regexp.MustCompile(`stag : 0x[0-9a-f]+ `)
)

// prints checks the whole output of a program of rdma-example, with addresses and keys
// replaced.
func (p *program) prints(format string, args ...any) {
	p.T.Helper()
	got := key.ReplaceAllString(address.ReplaceAllString(p.Wait(), "addr: 0xADDR "), "stag : 0xKEY ")
	if want := fmt.Sprintf(format, args...); got != want {
		p.T.Errorf("%v printed\n%.1000s\nnot\n%.1000s", p.Cmd.Path, got, want)
	}
}

// TestRDMAExample runs rdma-example's clients with its servers, each in C and in Go, with
// and without options.
func TestRDMAExample(t *testing.T) {
	labtest.RequireKernel(t)
	clients, servers := sides(t)
	labtest.Each(t, func(t *testing.T, device string) {
		addr := labtest.AddrOf(device)
		for server, serverPath := range servers {
			for client, clientPath := range clients {
				for _, r := range labtest.Few(1, []struct {
					name, listen, port, text string
					serverArgs, clientArgs   []string
				}{
					{"all options", addr, "7320", "a text of some length, with spaces", []string{"-a", addr, "-p", "7320"}, []string{"-p", "7320"}},
					{"defaults", "0.0.0.0", "20886", strings.Repeat("0123456789", 10_000), nil, nil},
					{"a byte", "0.0.0.0", "7321", "x", []string{"-p", "7321"}, []string{"-p", "7321"}},
				}) {
					t.Run(fmt.Sprintf("%s client, %s server, %s", client, server, r.name), func(t *testing.T) {
						s := start(t, serverPath, r.serverArgs...)
						labtest.WaitListening(t, r.port)
						c := start(t, clientPath, append(r.clientArgs, "-a", addr, "-s", r.text)...)
						c.prints(clientPrints, addr, r.port, len(r.text), r.text, r.listen)
						s.prints(serverPrints, addr, r.port, len(r.text), r.text, r.listen)
					})
				}
			}
		}
	})
}

// TestRDMAExampleFails runs rdma-example's programs where they must fail: in both languages
// they print the same output, and the reason on standard error.
func TestRDMAExampleFails(t *testing.T) {
	clients, servers := sides(t)
	const tried = "Passed string is : text , with count 4 \nTrying to connect to server at : 10.9.0.1 port: 1 \n"
	for _, r := range []struct {
		programs map[string]string
		args     string
		prints   string
	}{
		{clients, "", "Please provide a string to copy \n" + clientUsage},
		{clients, "-a 10.9.0.1 -p 7322", "Please provide a string to copy \n" + clientUsage},
		{clients, "-s", clientUsage},
		{clients, "-x", clientUsage},
		{clients, "-h", clientUsage},
		{servers, "-p", serverUsage},
		{servers, "-s text", serverUsage},
		{clients, "-s text", "Passed string is : text , with count 4 \n"}, // no device serves 127.0.0.1
		{clients, "-s text -a 10.9.0.1 -p 1", tried},
		{servers, "-a 10.9.0.77", ""},
	} {
		for language, path := range r.programs {
			var out, errs bytes.Buffer
			cmd := exec.CommandContext(t.Context(), path, strings.Fields(r.args)...)
			cmd.Stdout, cmd.Stderr = &out, &errs
			err := cmd.Run()
			if e, ok := errors.AsType[*exec.ExitError](err); !ok || e.ExitCode() != 1 || out.String() != r.prints {
				t.Errorf("%s %s: %v, printed\n%s%s", language, cmd, err, &out, &errs)
			}
			if said := errs.Len() > 0; said == strings.HasPrefix(r.prints, "Please") && r.args != "-h" {
				t.Errorf("%s %s: standard error is %q", language, cmd, &errs)
			}
		}
	}
}
