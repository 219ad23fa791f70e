package s3rdma

import (
	"fmt"
	"net/http"
	"net/netip"

	"github.com/goverbs/verbs"
)

// CheckPeer returns an error unless a GID is the address that an HTTP request comes from. A token's GID
// says where the server's adapter sends packets: without this check any client can aim them at any
// machine that the network routes to. Servers behind a proxy, or whose clients have RDMA on another
// address than HTTP, need a check of their own. So does InfiniBand, where GIDs are no IP addresses.
func CheckPeer(r *http.Request, gid verbs.GID) error {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return fmt.Errorf("check GID %v of the token: the request comes from %q, which is no IP address: %w", gid, r.RemoteAddr, err)
	}
	if addr := from.Addr().WithZone("").Unmap(); addr != gid.Addr() {
		return fmt.Errorf("check GID %v of the token: the request comes from %v: send it from the GID's address, or let the server allow others", gid, addr)
	}
	return nil
}
