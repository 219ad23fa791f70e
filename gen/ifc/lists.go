package main

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
	{opPrefix, "Op", "", "Commands, MLX5_CMD_OP_*."},
	{"MLX5_CMD_STAT_", "Status", "Status", "Status of a command, MLX5_CMD_STAT_*."},
	{"MLX5_EVENT_TYPE_", "Event", "", "Events, MLX5_EVENT_TYPE_*."},
	{"MLX5_PFAULT_SUBTYPE_", "PfaultSubtype", "", "Subtypes of EventPageFault, MLX5_PFAULT_SUBTYPE_*."},
	{"MLX5_WQE_PF_TYPE_", "WqePfType", "", "Types of page faults of requests, MLX5_WQE_PF_TYPE_*."},
	{"MLX5_PAGE_FAULT_RESUME_", "PageFaultResume", "", "Bits of the types of page faults, MLX5_PAGE_FAULT_RESUME_*."},
	{"MLX5_PORT_CHANGE_SUBTYPE_", "PortChange", "", "Subtypes of EventPortChange, MLX5_PORT_CHANGE_SUBTYPE_*."},
	{"MLX5_CAP_", "Cap", "", "Types of capabilities, enum mlx5_cap_type, and other values of them."},
	{"MLX5_OPCODE_", "Opcode", "", "Opcodes of WQEs, MLX5_OPCODE_*."},
	{"MLX5_CQE_", "Cqe", "", "Opcodes, syndromes and other values of CQEs, MLX5_CQE_*."},
	{"MLX5_QP_OPTPAR_", "Optpar", "", "Bits of opt_param_mask, enum mlx5_qp_optpar."},
	{"MLX5_QP_STATE_", "QpState", "", "States of QPs."},
	{"MLX5_QP_ST_", "QpType", "", "Service types of QPs, qpc.st."},
	{"MLX5_MKC_ACCESS_MODE_", "MkcMode", "", "Access modes of mkeys."},
	{"MLX5_MKEY_MASK_", "MkeyMask", "", "Bits of a UMR's mkey_mask."},
	{"MLX5_WQE_CTRL_", "WqeCtrl", "", "Bits of fm_ce_se in the control segment."},
	{"MLX5_FENCE_MODE_", "Fence", "", "Fences in fm_ce_se."},
	{"MLX5_ETH_WQE_", "EthWqe", "", "Checksum flags of the Ethernet segment."},
	{"MLX5_REG_", "Reg", "", "Registers of ACCESS_REG."},
}

// withReserved is the structure whose reserved bits are written, too.
const withReserved = "flow_table_fields_supported"
