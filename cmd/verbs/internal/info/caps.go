package info

type flagName struct {
	bit  uint64
	name string
}

// The names of flags are those of ibv_devinfo.

// deviceCaps are the device_cap_flags (enum ib_uverbs_device_cap_flags).
var deviceCaps = []flagName{
	{1 << 0, "RESIZE_MAX_WR"},
	{1 << 1, "BAD_PKEY_CNTR"},
	{1 << 2, "BAD_QKEY_CNTR"},
	{1 << 3, "RAW_MULTI"},
	{1 << 4, "AUTO_PATH_MIG"},
	{1 << 5, "CHANGE_PHY_PORT"},
	{1 << 6, "UD_AV_PORT_ENFORCE"},
	{1 << 7, "CURR_QP_STATE_MOD"},
	{1 << 8, "SHUTDOWN_PORT"},
	{1 << 9, "INIT_TYPE"},
	{1 << 10, "PORT_ACTIVE_EVENT"},
	{1 << 11, "SYS_IMAGE_GUID"},
	{1 << 12, "RC_RNR_NAK_GEN"},
	{1 << 13, "SRQ_RESIZE"},
	{1 << 14, "N_NOTIFY_CQ"},
	{1 << 17, "MEM_WINDOW"},
	{1 << 18, "UD_IP_CSUM"},
	{1 << 20, "XRC"},
	{1 << 21, "MEM_MGT_EXTENSIONS"},
	{1 << 23, "MEM_WINDOW_TYPE_2A"},
	{1 << 24, "MEM_WINDOW_TYPE_2B"},
	{1 << 25, "RC_IP_CSUM"},
	{1 << 26, "RAW_IP_CSUM"},
	{1 << 29, "MANAGED_FLOW_STEERING"},
}

// deviceCapsEx are the flags that device_cap_flags_ex adds. ibv_devinfo shows the last three
// as unknown.
var deviceCapsEx = []flagName{
	{1 << 34, "RAW_SCATTER_FCS"},
	{1 << 36, "PCI_WRITE_END_PADDING"},
	{1 << 38, "FLUSH_GLOBAL"},
	{1 << 39, "FLUSH_PERSISTENT"},
	{1 << 40, "ATOMIC_WRITE"},
}

// odpCaps are the general_odp_caps (enum ib_uverbs_odp_general_cap_bits).
var odpCaps = []flagName{
	{1 << 0, "ODP_SUPPORT"},
	{1 << 1, "ODP_SUPPORT_IMPLICIT"},
}

// odpTransportCaps are those of a transport (enum
// ib_uverbs_odp_transport_cap_bits).
var odpTransportCaps = []flagName{
	{1 << 0, "SUPPORT_SEND"},
	{1 << 1, "SUPPORT_RECV"},
	{1 << 2, "SUPPORT_WRITE"},
	{1 << 3, "SUPPORT_READ"},
	{1 << 4, "SUPPORT_ATOMIC"},
	{1 << 5, "SUPPORT_SRQ"},
	{1 << 6, "SUPPORT_FLUSH"},
	{1 << 7, "SUPPORT_ATOMIC_WRITE"},
}

// rawPacketCaps are the raw_packet_caps (enum ib_uverbs_raw_packet_caps).
var rawPacketCaps = []flagName{
	{1 << 0, "CVLAN_STRIPPING"},
	{1 << 1, "SCATTER_FCS"},
	{1 << 2, "IP_CSUM"},
	{1 << 3, "DELAY_DROP"},
}
