package info

// Names of flags as in ibv_devinfo, by the numbers of their bits.

// deviceCaps are the device_cap_flags (enum ib_uverbs_device_cap_flags).
var deviceCaps = []string{
	"RESIZE_MAX_WR", "BAD_PKEY_CNTR", "BAD_QKEY_CNTR", "RAW_MULTI", "AUTO_PATH_MIG", "CHANGE_PHY_PORT",
	"UD_AV_PORT_ENFORCE", "CURR_QP_STATE_MOD", "SHUTDOWN_PORT", "INIT_TYPE", "PORT_ACTIVE_EVENT", "SYS_IMAGE_GUID",
	"RC_RNR_NAK_GEN", "SRQ_RESIZE", "N_NOTIFY_CQ",
	17: "MEM_WINDOW", "UD_IP_CSUM",
	20: "XRC", "MEM_MGT_EXTENSIONS",
	23: "MEM_WINDOW_TYPE_2A", "MEM_WINDOW_TYPE_2B", "RC_IP_CSUM", "RAW_IP_CSUM",
	29: "MANAGED_FLOW_STEERING",
}

// deviceCapsEx are the flags that device_cap_flags_ex adds. ibv_devinfo shows the last three
// as unknown.
var deviceCapsEx = []string{34: "RAW_SCATTER_FCS", 36: "PCI_WRITE_END_PADDING", 38: "FLUSH_GLOBAL", "FLUSH_PERSISTENT", "ATOMIC_WRITE"}

// odpCaps are the general_odp_caps (enum ib_uverbs_odp_general_cap_bits).
var odpCaps = []string{"ODP_SUPPORT", "ODP_SUPPORT_IMPLICIT"}

// odpTransportCaps are those of a transport (enum
// ib_uverbs_odp_transport_cap_bits).
var odpTransportCaps = []string{
	"SUPPORT_SEND", "SUPPORT_RECV", "SUPPORT_WRITE", "SUPPORT_READ", "SUPPORT_ATOMIC", "SUPPORT_SRQ", "SUPPORT_FLUSH", "SUPPORT_ATOMIC_WRITE",
}

// rawPacketCaps are the raw_packet_caps (enum ib_uverbs_raw_packet_caps).
var rawPacketCaps = []string{"CVLAN_STRIPPING", "SCATTER_FCS", "IP_CSUM", "DELAY_DROP"}
