package hosts

import (
	"fmt"
	"strings"
	"testing"
)

// TestConnectXNVMe makes a disk of one machine's memory that of the other, by the kernel's NVMe
// over RDMA, with all that a kernel's own protocol uses: fast registration, invalidation, READ and
// WRITE.
func TestConnectXNVMe(t *testing.T) { testNVMe(t, dialTwin(t), fmt.Sprintf(adapterAddr, 2)) }

// testNVMe serves the disk at an address of the second machine.
func testNVMe(t *testing.T, p *peer, addr string) {
	p.run(t, 2, "sh", "-ec", nvmeTarget, addr)
	t.Cleanup(func() { p.run(t, 2, "sh", "-ec", nvmeTargetEnd) })
	for _, r := range []struct{ registered, blocks string }{
		{"N", "4k"}, // one page at a time needs no registration
		{"Y", "4k"},
		{"Y", "128k"},
	} {
		t.Run(fmt.Sprintf("%s in blocks of %s", map[string]string{"N": "by the global key", "Y": "registered"}[r.registered], r.blocks), func(t *testing.T) {
			out := p.run(t, 1, "sh", "-ec", nvmeHost, addr, r.registered, r.blocks)
			sums := strings.Fields(out)
			if there := strings.Fields(p.run(t, 2, "sh", "-ec", "dd if=/dev/ram0 bs=1M iflag=direct status=none | sha256sum")); len(sums) < 4 || sums[0] != sums[2] || sums[0] != there[0] {
				t.Errorf("what was written, what was read, and what is there:\n%s%s", out, there)
			}
		})
	}
}

// nvmeTarget serves a disk in memory at an address.
const nvmeTarget = `modprobe brd rd_nr=1 rd_size=4096
modprobe nvmet-rdma
mount -t configfs none /sys/kernel/config
cd /sys/kernel/config/nvmet
mkdir subsystems/disk subsystems/disk/namespaces/1 ports/1
echo 1 >subsystems/disk/attr_allow_any_host
echo /dev/ram0 >subsystems/disk/namespaces/1/device_path
echo 1 >subsystems/disk/namespaces/1/enable
cd ports/1
echo rdma >addr_trtype
echo ipv4 >addr_adrfam
echo $0 >addr_traddr
echo 4420 >addr_trsvcid
ln -s ../../subsystems/disk subsystems/disk`

const nvmeTargetEnd = `cd /sys/kernel/config/nvmet
rm ports/1/subsystems/disk
rmdir ports/1 subsystems/disk/namespaces/1 subsystems/disk
cd /
umount /sys/kernel/config
modprobe -r nvmet-rdma`

// nvmeHost writes other data to the disk each time, directly, and reads them.
const nvmeHost = `modprobe nvme-rdma register_always=$1
echo transport=rdma,traddr=$0,trsvcid=4420,nqn=disk,hostnqn=nqn.2014-08.org.nvmexpress:uuid:6d5ab2f4-1e0c-4c39-8d0a-6a2e5d2c9a10,hostid=6d5ab2f4-1e0c-4c39-8d0a-6a2e5d2c9a10,nr_io_queues=2 >/dev/nvme-fabrics
until test -b /dev/nvme0n1; do sleep 0.1; done
dd if=/dev/urandom of=/tmp/written bs=1M count=4 status=none
dd if=/tmp/written of=/dev/nvme0n1 bs=$2 oflag=direct status=none
sha256sum </tmp/written
dd if=/dev/nvme0n1 bs=$2 iflag=direct status=none | sha256sum
echo 1 >/sys/class/nvme/nvme0/delete_controller
while test -e /sys/class/nvme/nvme0; do sleep 0.1; done
modprobe -r nvme-rdma`
