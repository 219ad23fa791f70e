package cm

import (
	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// node is rdma_cm's device.
const node = "/dev/infiniband/rdma_cm"

// message is a command where the kernel reads it, with room for the answer.
type message struct {
	mem    []byte // header, request, answer
	answer int    // where it is
	size   int    // of what is sent
}

// encode makes a message of a request. The answer, if it has a length, goes
// where *response, a field of the request, will say.
func encode(cmd uint32, req []byte, response *uint64, answerLen int) (message, error) {
	hdr := mmap.Bytes(&abi.RdmaUcmCmdHdr{Cmd: cmd, In: uint16(len(req)), Out: uint16(answerLen)})
	size := len(hdr) + len(req)
	answer := (size + 7) &^ 7
	mem, err := mmap.Alloc(answer + answerLen)
	if err != nil {
		return message{}, err
	}
	if response != nil {
		*response = mmap.Addr(mem[answer:])
		clear(mem[answer:][:answerLen]) // an older kernel does not fill all of it
	}
	copy(mem, hdr)
	copy(mem[len(hdr):], req)
	return message{mem, answer, size}, nil
}

// bytes is what is sent.
func (m message) bytes() []byte { return m.mem[:m.size] }

// read reads the answer.
func (m message) read(answer []byte) { copy(answer, m.mem[m.answer:]) }

func (m message) free() { mmap.Free(m.mem) }

// enotsupp is the kernel's own EOPNOTSUPP, which no program should see but
// those that join an IPv6 group on RoCE do.
const enotsupp = unix.Errno(524)

func public(err error) error {
	if err == enotsupp {
		return unix.EOPNOTSUPP
	}
	return err
}

// command runs a command that answers nothing.
func command[Req any](c *Channel, cmd uint32, req *Req) error {
	m, err := encode(cmd, mmap.Bytes(req), nil, 0)
	if err != nil {
		return err
	}
	defer m.free()
	return public(c.run(m, nil))
}

// query runs a command that is answered in *resp; response is the field of req
// that says where to.
func query[Resp, Req any](c *Channel, cmd uint32, req *Req, response *uint64, resp *Resp) error {
	m, err := encode(cmd, mmap.Bytes(req), response, len(mmap.Bytes(resp)))
	if err != nil {
		return err
	}
	defer m.free()
	return public(c.run(m, mmap.Bytes(resp)))
}
