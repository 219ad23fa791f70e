//go:build linux

package rmsg

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// ibmsg lists all names of ibmsg.h.
var ibmsg = strings.Fields(`
	ibmsg_init_event_loop ibmsg_destroy_event_loop ibmsg_connect ibmsg_disconnect ibmsg_listen
	ibmsg_accept ibmsg_alloc_msg ibmsg_free_msg ibmsg_post_send ibmsg_dispatch_event_loop

	ibmsg_connection_request cmid status IBMSG_UNDECIDED IBMSG_ACCEPTED
	ibmsg_buffer mr data size status IBMSG_WAITING IBMSG_SENT IBMSG_RECEIVED
	ibmsg_socket cmid status socket_type recv_buffer send_event_description recv_event_description
	IBMSG_UNCONNECTED IBMSG_ADDRESS_RESOLVED IBMSG_ROUTE_RESOLVED IBMSG_CONNECTED IBMSG_DISCONNECTING IBMSG_ERROR
	IBMSG_LISTEN_SOCKET IBMSG_RECV_SOCKET IBMSG_SEND_SOCKET
	ibmsg_event_loop event_channel epollfd connection_request connection_established message_received event_description
	IBMSG_CMA IBMSG_SEND_COMPLETION IBMSG_RECV_COMPLETION

	IBMSG_MAX_MSGSIZE IBMSG_OK IBMSG_FCNTL_FAILED IBMSG_GETADDRINFO_FAILED IBMSG_CREATE_ID_FAILED
	IBMSG_BIND_FAILED IBMSG_LISTEN_FAILED IBMSG_ADDRESS_RESOLUTION_FAILED IBMSG_FETCH_EVENT_FAILED
	IBMSG_ACK_EVENT_FAILED IBMSG_ALLOC_FAILED IBMSG_MEMORY_REGISTRATION_FAILED IBMSG_POST_SEND_FAILED
	IBMSG_DISCONNECT_FAILED IBMSG_FREE_BUFFER_FAILED IBMSG_CREATE_QP_FAILED IBMSG_ACCEPT_FAILED
	IBMSG_EPOLL_FAILED IBMSG_EPOLL_ADD_FD_FAILED IBMSG_EPOLL_WAIT_FAILED
`)

// TestTable checks that the table for ibmsg's users has all names of ibmsg, and that the
// names and tests of this package in it exist.
func TestTable(t *testing.T) {
	if os.Getenv("VERBS_LAB") != "" {
		t.Skip("reads the sources, which need not be here")
	}
	tests, names := labtest.Declarations(t, ".")
	src, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^//	 *([\w, ()]+?) {2,}(\S.*?) {2,}(-|(?:Test\w+(?:, )?)+)$`).FindAllStringSubmatch(string(src), -1)
	var listed []string
	for _, row := range rows {
		name, _, _ := strings.Cut(row[1], " (")
		for c := range strings.SplitSeq(name, ", ") {
			if name == row[1] {
				listed = append(listed, c)
			}
		}
		if row[3] != "-" {
			for test := range strings.SplitSeq(row[3], ", ") {
				if !tests[test] {
					t.Errorf("%s: no test %s", row[1], test)
				}
			}
		}
		for _, name := range regexp.MustCompile(`\b[A-Z]\w+(\.\w+)?`).FindAllString(row[2], -1) {
			if !names[name] {
				t.Errorf("%s: there is no %s", row[1], name)
			}
		}
	}
	slices.Sort(listed)
	want := slices.Sorted(slices.Values(ibmsg))
	if !slices.Equal(listed, want) {
		t.Errorf("the table has\n%v\nand ibmsg\n%v", listed, want)
	}
}
