package abicheck

import "strings"

// use is a feature of the project and the kernel's structures that it needs.
type use struct {
	feature string // that does not work if the structures differ
	// mapped is set if the structures are in memory that both sides share: neither
	// side learns the other's size.
	mapped bool
	module string // that has the structures, if only one has
	types  string // names, of structs unless "union" precedes
}

// names returns the names of the types, as [Type.String] does.
func (u use) names() []string {
	var list []string
	kind := "struct "
	for _, name := range strings.Fields(u.types) {
		if name == "union" {
			kind = "union "
			continue
		}
		list = append(list, kind+name)
		kind = "struct "
	}
	return list
}

// uses lists all structures that the project exchanges with the kernel. TestUses
// checks that.
var uses = []use{
	{feature: "every verb", types: "ib_uverbs_cmd_hdr ib_uverbs_ioctl_hdr ib_uverbs_attr"},
	{feature: "device attributes", types: `ib_uverbs_ex_query_device ib_uverbs_ex_query_device_resp ib_uverbs_query_device_resp
		ib_uverbs_odp_caps ib_uverbs_rss_caps ib_uverbs_tm_caps ib_uverbs_cq_moderation_caps`},
	{feature: "port attributes", types: "ib_uverbs_query_port_resp ib_uverbs_query_port_resp_ex"},
	{feature: "GID tables", types: "ib_uverbs_gid_entry"},
	{feature: "asynchronous events", types: "ib_uverbs_async_event_desc"},
	{feature: "completion events", types: "ib_uverbs_create_comp_channel ib_uverbs_create_comp_channel_resp ib_uverbs_comp_event_desc ib_uverbs_req_notify_cq"},
	{feature: "protection domains", types: "ib_uverbs_alloc_pd ib_uverbs_alloc_pd_resp"},
	{feature: "memory regions", types: "ib_uverbs_reg_mr ib_uverbs_reg_mr_resp ib_uverbs_rereg_mr ib_uverbs_rereg_mr_resp"},
	{feature: "memory windows", types: "ib_uverbs_alloc_mw ib_uverbs_alloc_mw_resp"},
	{feature: "completion queues", types: "ib_uverbs_destroy_cq_resp ib_uverbs_resize_cq ib_uverbs_resize_cq_resp ib_uverbs_ex_modify_cq ib_uverbs_cq_moderation"},
	{feature: "queue pairs", types: `ib_uverbs_qp_cap ib_uverbs_qp_dest ib_uverbs_qp_attr ib_uverbs_modify_qp
		ib_uverbs_query_qp ib_uverbs_query_qp_resp ib_uverbs_destroy_qp_resp`},
	{feature: "doorbells", types: "ib_uverbs_post_send ib_uverbs_post_send_resp ib_uverbs_send_wr"},
	{feature: "shared receive queues", types: "ib_uverbs_modify_srq ib_uverbs_query_srq ib_uverbs_query_srq_resp ib_uverbs_destroy_srq_resp"},
	{feature: "address handles", types: "ib_uverbs_ah_attr ib_uverbs_global_route ib_uverbs_create_ah ib_uverbs_create_ah_resp"},
	{feature: "multicast", types: "ib_uverbs_attach_mcast"},

	{feature: "connections", types: `rdma_ucm_cmd_hdr rdma_ucm_create_id rdma_ucm_create_id_resp rdma_ucm_destroy_id rdma_ucm_destroy_id_resp
		rdma_ucm_bind rdma_ucm_resolve_addr rdma_ucm_resolve_route rdma_ucm_listen rdma_ucm_connect rdma_ucm_accept rdma_ucm_reject
		rdma_ucm_disconnect rdma_ucm_conn_param rdma_ucm_ece rdma_ucm_init_qp_attr`},
	{feature: "addresses of connections", types: `rdma_ucm_query rdma_ucm_query_addr_resp rdma_ucm_query_path_resp ib_path_rec_data
		__kernel_sockaddr_storage`},
	{feature: "events of connections", types: "rdma_ucm_get_event rdma_ucm_event_resp rdma_ucm_ud_param"},
	{feature: "options of connections", types: "rdma_ucm_set_option rdma_ucm_notify"},
	{feature: "changes of credentials", types: "rdma_ucm_migrate_id rdma_ucm_migrate_resp"},
	{feature: "multicast groups", types: "rdma_ucm_join_mcast"},

	{feature: "rxe: queues", module: "rdma_rxe", types: `mminfo rxe_create_cq_resp rxe_resize_cq_resp rxe_create_qp_resp rxe_create_srq_resp rxe_modify_srq_cmd`},
	{feature: "rxe: address handles", module: "rdma_rxe", types: "rxe_create_ah_resp"},
	{feature: "rxe: sending and receiving", module: "rdma_rxe", mapped: true, types: `rxe_queue_buf rxe_send_wqe rxe_send_wr rxe_recv_wqe rxe_dma_info rxe_sge
		rxe_av rxe_global_route union rxe_gid`},
	{feature: "rxe: completions", module: "rdma_rxe", mapped: true, types: "ib_uverbs_wc"},

	{feature: "siw: queues", module: "siw", types: "siw_uresp_alloc_ctx siw_uresp_create_cq siw_uresp_create_qp siw_uresp_create_srq"},
	{feature: "siw: memory regions", module: "siw", types: "siw_ureq_reg_mr siw_uresp_reg_mr"},
	{feature: "siw: sending and receiving", module: "siw", mapped: true, types: "siw_sqe siw_rqe siw_sge"},
	{feature: "siw: completions", module: "siw", mapped: true, types: "siw_cqe siw_cq_ctrl"},

	{feature: "mlx5: contexts", module: "mlx5_ib", types: "mlx5_ib_alloc_ucontext_req_v2 mlx5_ib_alloc_ucontext_resp mlx5_ib_alloc_pd_resp"},
	{feature: "mlx5: queues", module: "mlx5_ib", types: `mlx5_ib_create_cq mlx5_ib_create_cq_resp mlx5_ib_resize_cq
		mlx5_ib_create_qp mlx5_ib_create_qp_dci_streams mlx5_ib_create_qp_resp mlx5_ib_modify_qp mlx5_ib_burst_info mlx5_ib_modify_qp_resp
		mlx5_ib_create_srq mlx5_ib_create_srq_resp`},
	{feature: "erdma: contexts", module: "erdma", types: "erdma_uresp_alloc_ctx"},
	{feature: "erdma: queues", module: "erdma", types: "erdma_ureq_create_cq erdma_uresp_create_cq erdma_ureq_create_qp erdma_uresp_create_qp"},
	{feature: "mlx5: address handles", module: "mlx5_ib", types: "mlx5_ib_create_ah_resp"},
}

// memberFeatures names the feature that needs a member, for structures that work without
// that member.
var memberFeatures = map[string]string{
	"struct rxe_send_wr wr.flush":                         "RDMA FLUSH",
	"struct ib_uverbs_query_port_resp_ex active_speed_ex": "the speed of ports faster than NDR",
}
