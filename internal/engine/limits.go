package engine

// The limits of rxe (rxe_param.h).
const (
	maxValue = 1 << 20

	maxQPWR       = maxValue
	maxSGE        = 32
	maxInline     = maxSGE * sgeSize
	maxCQ         = maxValue
	maxCQE        = 1<<15 - 1
	maxPD         = maxValue
	maxRDAtomic   = 128
	maxMcastGroup = 256 // of rxe 8192; a network may need a socket and a goroutine for each, at each port
	maxGroupQPs   = 56
	maxAttached   = 0x70000
	maxAH         = 1<<15 - 1
	maxSRQWR      = maxValue
	maxSRQSGE     = 27
	minQPNum      = 16
	maxQP         = maxValue - minQPNum
	minSRQNum     = 0x00020001
	maxSRQ        = maxValue - minSRQNum
	maxMR         = maxValue>>1 - 1
	maxMW         = maxValue - (maxValue >> 1) - 1
	maxMessage    = 1 << 31
	gidTableLen   = 256 // of rxe 1024, most of which no address vector can name: it has 8 bits for the index
	multicastQPN  = 0xffffff
	vendorID      = 0xffffff
	ackDelay      = 15
)

// The window of an RC requester, in packets. rxe's requester has a window of 128 packets.
const (
	maxWindow     = 128
	minWindow     = 2
	initialWindow = 32
	maxUnasked    = 64 // packets after which an acknowledgement is requested
)

// Amounts of work after which others get their turn.
const (
	burst      = 64   // packets that a QP sends at a time
	drainWork  = 1024 // items that a caller processes of the work queue
	localQueue = 4096 // items of the work queue, except RC's
	backlog    = 256  // requests that wait behind a long answer to an RDMA READ
	// Datagrams that wait for the handler. A connection that is made and ended at once has two
	// here, RTU and DREQ, and handshakes take programs longer than the network: so thousands wait
	// when thousands of programs dial a device at once. ib_cm's queue has no limit
	// (cm_recv_handler); this one is for floods, 8 MB.
	madQueue = 1 << 14

	fewPackets = 4 // received at a time, by a QP that exchanges small messages
)
