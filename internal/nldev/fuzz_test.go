//go:build linux

package nldev

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/abi"
)

// FuzzParse parses arbitrary answers: all attributes are in the answer, and errors are
// errnos.
func FuzzParse(f *testing.F) {
	message := func(typ, flags int, data []byte) []byte {
		b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(data)))
		b = binary.NativeEndian.AppendUint16(b, uint16(typ))
		b = binary.NativeEndian.AppendUint16(b, uint16(flags))
		return append(append(b, make([]byte, 8)...), data...)
	}
	const get = abi.RDMA_NL_NLDEV<<10 | abi.RDMA_NLDEV_CMD_GET
	device := message(get, 0, Attrs{}.Uint32(abi.RDMA_NLDEV_ATTR_DEV_INDEX, 3).String(abi.RDMA_NLDEV_ATTR_DEV_NAME, "rxe0"))
	done := message(unix.NLMSG_DONE, 0, make([]byte, 4))
	refused := append(binary.NativeEndian.AppendUint32(nil, ^uint32(unix.EINVAL)+1), make([]byte, unix.SizeofNlMsghdr)...)
	refused = append(refused, Attrs{}.String(unix.NLMSGERR_ATTR_MSG, "bad port")...)
	refused = message(unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS|unix.NLM_F_CAPPED, refused)

	var got map[int]Value
	last, err := parse(append(device, done...), func(a Attrs) error { got = a.Map(); return nil })
	if !last || err != nil || len(got) != 2 || got[abi.RDMA_NLDEV_ATTR_DEV_INDEX].Uint() != 3 || got[abi.RDMA_NLDEV_ATTR_DEV_NAME].String() != "rxe0" {
		f.Fatalf("%v, %v, %v", got, last, err)
	}
	if last, err := parse(refused, nil); !last || err == nil || err.Error() != "invalid argument: bad port" {
		f.Fatalf("%v, %v", last, err)
	}

	f.Add(append(device, done...))
	f.Add(refused)
	f.Add(message(unix.NLMSG_ERROR, 0, binary.NativeEndian.AppendUint32(nil, ^uint32(0))))
	f.Add(message(unix.NLMSG_ERROR, 0, nil))
	f.Add(message(unix.NLMSG_DONE, unix.NLM_F_ACK_TLVS, []byte{255, 255, 255, 255, 9, 0, 1, 0, 'x'}))
	f.Add(message(get, 0, []byte{0, 0, 0, 0}))
	f.Add(message(get, 0, []byte{5, 0, 2, 0, 'x'}))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, err := parse(b, func(a Attrs) error {
			total := 0
			for typ, v := range a.All() {
				if typ < 0 || typ >= byteOrder {
					t.Fatalf("type %d", typ)
				}
				v.Uint()
				if len(v.String()) > len(v) {
					t.Fatalf("%q of %q", v.String(), v)
				}
				total += attrHeader + len(v)
			}
			if total > len(a) {
				t.Fatalf("%d bytes of attributes in %d", total, len(a))
			}
			return nil
		})
		if err != nil && err.Error() == "" {
			t.Fatalf("%T %v", err, err)
		}
	})
}
