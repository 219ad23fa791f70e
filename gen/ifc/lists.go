package main

import "strings"

// Source of the headers. The version is pinned only here. A newer header has names for what an
// older one calls reserved; fields do not move.
const (
	headersSuite   = "trixie-backports"
	headersPackage = "linux-headers-7.3.4+deb13-common"
	headersVersion = "7.3.4-1~bpo13+1"
)

var headers = []string{"mlx5_ifc.h", "device.h", "qp.h", "driver.h"}

// enum selects enumerators by a regular expression of what their names begin with.
type enum struct{ match, name, typ, comment string }

var enums = []enum{
	{"MLX5_CMD_STAT_", "status", "status", "Status of a command, MLX5_CMD_STAT_*."},
	{"MLX5_EVENT_TYPE_", "event", "", "Events, MLX5_EVENT_TYPE_*."},
	{"MLX5_PORT_CHANGE_SUBTYPE_", "portChange", "", "Subtypes of eventPortChange, MLX5_PORT_CHANGE_SUBTYPE_*."},
	{"MLX5_CAP_", "cap", "", "Types of capabilities, enum mlx5_cap_type, and other values of them."},
	{"MLX5_OPCODE_", "opcode", "", "Opcodes of WQEs, MLX5_OPCODE_*."},
	{"MLX5_CQE_", "cqe", "", "Opcodes, syndromes and other values of CQEs, MLX5_CQE_*."},
	{"MLX5_QP_OPTPAR_", "optpar", "", "Bits of opt_param_mask, enum mlx5_qp_optpar."},
	{"MLX5_QP_STATE_", "qpState", "", "States of QPs."},
	{"MLX5_QP_ST_", "qpType", "", "Service types of QPs, qpc.st."},
	{"MLX5_MKC_ACCESS_MODE_", "mkcMode", "", "Access modes of mkeys."},
	{"MLX5_MKEY_MASK_", "mkeyMask", "", "Bits of a UMR's mkey_mask."},
	{"MLX5_WQE_CTRL_", "wqeCtrl", "", "Bits of fm_ce_se in the control segment."},
	{"MLX5_FENCE_MODE_", "fence", "", "Fences in fm_ce_se."},
	{"MLX5_ETH_WQE_", "ethWqe", "", "Checksum flags of the Ethernet segment."},
	{"MLX5_REG_", "reg", "", "Registers of ACCESS_REG."},
}

// commands are those that the device executes.
var commands = strings.Fields(`
	QUERY_HCA_CAP QUERY_ADAPTER INIT_HCA TEARDOWN_HCA ENABLE_HCA DISABLE_HCA QUERY_PAGES MANAGE_PAGES
	SET_HCA_CAP QUERY_ISSI SET_ISSI SET_DRIVER_VERSION QUERY_SPECIAL_CONTEXTS ACCESS_REG NOP
	CREATE_MKEY QUERY_MKEY DESTROY_MKEY
	CREATE_EQ DESTROY_EQ QUERY_EQ
	CREATE_CQ DESTROY_CQ QUERY_CQ MODIFY_CQ
	CREATE_QP DESTROY_QP RST2INIT_QP INIT2RTR_QP RTR2RTS_QP RTS2RTS_QP SQERR2RTS_QP 2ERR_QP 2RST_QP
	QUERY_QP INIT2INIT_QP
	CREATE_SRQ DESTROY_SRQ QUERY_SRQ ARM_RQ CREATE_XRC_SRQ DESTROY_XRC_SRQ QUERY_XRC_SRQ ARM_XRC_SRQ
	QUERY_VPORT_STATE MODIFY_VPORT_STATE QUERY_NIC_VPORT_CONTEXT MODIFY_NIC_VPORT_CONTEXT
	QUERY_ROCE_ADDRESS SET_ROCE_ADDRESS QUERY_HCA_VPORT_CONTEXT MODIFY_HCA_VPORT_CONTEXT
	QUERY_HCA_VPORT_GID QUERY_HCA_VPORT_PKEY QUERY_VNIC_ENV QUERY_VPORT_COUNTER
	ALLOC_Q_COUNTER DEALLOC_Q_COUNTER QUERY_Q_COUNTER
	ALLOC_PD DEALLOC_PD ALLOC_UAR DEALLOC_UAR ALLOC_XRCD DEALLOC_XRCD
	ALLOC_TRANSPORT_DOMAIN DEALLOC_TRANSPORT_DOMAIN ATTACH_TO_MCG DETACH_FROM_MCG MAD_IFC
	ADD_VXLAN_UDP_DPORT DELETE_VXLAN_UDP_DPORT QUERY_CONG_STATUS QUERY_CONG_PARAMS QUERY_CONG_STATISTICS
	CREATE_TIR MODIFY_TIR DESTROY_TIR QUERY_TIR CREATE_SQ MODIFY_SQ DESTROY_SQ QUERY_SQ
	CREATE_RQ MODIFY_RQ DESTROY_RQ QUERY_RQ CREATE_RMP MODIFY_RMP DESTROY_RMP QUERY_RMP
	CREATE_TIS MODIFY_TIS DESTROY_TIS QUERY_TIS CREATE_RQT MODIFY_RQT DESTROY_RQT
	SET_FLOW_TABLE_ROOT CREATE_FLOW_TABLE DESTROY_FLOW_TABLE QUERY_FLOW_TABLE MODIFY_FLOW_TABLE
	CREATE_FLOW_GROUP DESTROY_FLOW_GROUP QUERY_FLOW_GROUP SET_FLOW_TABLE_ENTRY QUERY_FLOW_TABLE_ENTRY
	DELETE_FLOW_TABLE_ENTRY ALLOC_FLOW_COUNTER DEALLOC_FLOW_COUNTER QUERY_FLOW_COUNTER
	SET_L2_TABLE_ENTRY DELETE_L2_TABLE_ENTRY`)

// structs are those whose fields are written, besides the commands' own.
var structs = strings.Fields(`
	cmd_hca_cap per_protocol_networking_offload_caps roce_cap atomic_caps flow_table_nic_cap
	flow_table_prop_layout flow_table_fields_supported
	query_adapter_param_block eqc cqc qpc ads mkc wq rqc sqc tirc tisc rqtc rmpc srqc xrc_srqc
	nic_vport_context modify_nic_vport_field_select hca_vport_context mac_address_layout vlan_layout roce_addr_layout traffic_counter
	flow_table_context flow_context fte_match_param fte_match_set_lyr_2_4 dest_format
	ptys_reg pmtu_reg paos_reg pvlc_reg ppcnt_reg
	eth_802_3_cntrs_grp_data_layout eth_2863_cntrs_grp_data_layout eth_2819_cntrs_grp_data_layout
	eth_per_prio_grp_data_layout ib_port_cntrs_grp_data_layout ib_ext_port_cntrs_grp_data_layout`)

// withReserved are structures whose reserved bits are written, too.
var withReserved = []string{"flow_table_fields_supported"}
