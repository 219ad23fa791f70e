package cm

import (
	"syscall"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// kernelNode is the device of the kernel's rdma_cm.
const kernelNode = "/dev/infiniband/rdma_cm"

// message is a command in memory that the kernel reads, with room for the answer.
type message struct {
	mem    []byte // header, request, answer
	answer int    // offset of the answer
	size   int    // of header and request
}

// encode makes a message of a request. If response is not nil, encode sets it, a
// field of the request, to the address at which the kernel writes the answer.
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

// bytes returns what is written to the kernel: header and request.
func (m message) bytes() []byte { return m.mem[:m.size] }

// read reads the answer.
func (m message) read(answer []byte) { copy(answer, m.mem[m.answer:]) }

func (m message) free() { mmap.Free(m.mem) }

// enotsupp is the kernel's internal ENOTSUPP, which should never reach a program.
// Joining an IPv6 multicast group on RoCE returns it nevertheless.
const enotsupp = syscall.Errno(524)

func translateErrno(err error) error {
	if err == enotsupp {
		return syscall.EOPNOTSUPP
	}
	return err
}

// exec runs a command and reads its answer into resp. response is the field of req for the answer's
// address; it is nil if the command has none.
func (m *manager) exec(cmd uint32, req []byte, response *uint64, resp []byte) error {
	msg, err := encode(cmd, req, response, len(resp))
	if err != nil {
		return err
	}
	defer msg.free()
	return translateErrno(m.run(msg, resp))
}
