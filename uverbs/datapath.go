package uverbs

import (
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/provider"
)

// The data-path types; see package provider for their constants' meaning.
type (
	SendWR    = provider.SendWR
	RecvWR    = provider.RecvWR
	SGE       = provider.SGE
	WC        = provider.WC
	Opcode    = provider.Opcode
	SendFlags = provider.SendFlags
	WCStatus  = provider.WCStatus
	WCOpcode  = provider.WCOpcode
	WCFlags   = provider.WCFlags
	Flush     = provider.Flush
	FlushType = provider.FlushType
	QPState   = provider.QPState
	QPType    = provider.QPType
	QPCap     = provider.QPCap
	PostError = provider.PostError
	WCError   = provider.WCError
	// Error is a failed operation of the control path.
	Error = sys.Error
)

const (
	OpRDMAWrite    = provider.OpRDMAWrite
	OpRDMAWriteImm = provider.OpRDMAWriteImm
	OpSend         = provider.OpSend
	OpSendImm      = provider.OpSendImm
	OpRDMARead     = provider.OpRDMARead
	OpCompareSwap  = provider.OpCompareSwap
	OpFetchAdd     = provider.OpFetchAdd
	OpLocalInv     = provider.OpLocalInv
	OpBindMW       = provider.OpBindMW
	OpSendInv      = provider.OpSendInv
	OpRDMAReadInv  = provider.OpRDMAReadInv
	OpFlush        = provider.OpFlush
	OpAtomicWrite  = provider.OpAtomicWrite

	FlushGlobal     = provider.FlushGlobal
	FlushPersistent = provider.FlushPersistent
	FlushRange      = provider.FlushRange
	FlushMR         = provider.FlushMR

	RC = provider.RC
	UC = provider.UC
	UD = provider.UD

	SendFence     = provider.SendFence
	SendSignaled  = provider.SendSignaled
	SendSolicited = provider.SendSolicited

	WCSuccess        = provider.WCSuccess
	WCLocLenErr      = provider.WCLocLenErr
	WCLocQPOpErr     = provider.WCLocQPOpErr
	WCLocProtErr     = provider.WCLocProtErr
	WCFlushErr       = provider.WCFlushErr
	WCMWBindErr      = provider.WCMWBindErr
	WCBadRespErr     = provider.WCBadRespErr
	WCLocAccessErr   = provider.WCLocAccessErr
	WCRemInvReqErr   = provider.WCRemInvReqErr
	WCRemAccessErr   = provider.WCRemAccessErr
	WCRemOpErr       = provider.WCRemOpErr
	WCRetryExcErr    = provider.WCRetryExcErr
	WCRNRRetryExcErr = provider.WCRNRRetryExcErr
	WCFatalErr       = provider.WCFatalErr
	WCGeneralErr     = provider.WCGeneralErr

	WCSend        = provider.WCSend
	WCRDMAWrite   = provider.WCRDMAWrite
	WCRDMARead    = provider.WCRDMARead
	WCCompareSwap = provider.WCCompareSwap
	WCFetchAdd    = provider.WCFetchAdd
	WCBindMW      = provider.WCBindMW
	WCLocalInv    = provider.WCLocalInv
	WCFlush       = provider.WCFlush
	WCAtomicWrite = provider.WCAtomicWrite
	WCRecv        = provider.WCRecv
	WCRecvRDMAImm = provider.WCRecvRDMAImm

	WCGRH     = provider.WCGRH
	WCWithImm = provider.WCWithImm
	WCWithInv = provider.WCWithInv

	StateReset = provider.StateReset
	StateInit  = provider.StateInit
	StateRTR   = provider.StateRTR
	StateRTS   = provider.StateRTS
	StateSQD   = provider.StateSQD
	StateSQE   = provider.StateSQE
	StateErr   = provider.StateErr
)

// Reasons for refusing a work request.
var (
	ErrQueueFull      = provider.ErrQueueFull
	ErrQueueFailed    = provider.ErrQueueFailed
	ErrNoSendRoom     = provider.ErrNoSendRoom
	ErrNoRecvRoom     = provider.ErrNoRecvRoom
	ErrTooManySGEs    = provider.ErrTooManySGEs
	ErrInlineTooLong  = provider.ErrInlineTooLong
	ErrInlineSGL      = provider.ErrInlineSGL
	ErrInlineOp       = provider.ErrInlineOp
	ErrBind           = provider.ErrBind
	ErrAtomicWrite    = provider.ErrAtomicWrite
	ErrAtomicSGL      = provider.ErrAtomicSGL
	ErrMessageTooLong = provider.ErrMessageTooLong
	ErrNoOpcode       = provider.ErrNoOpcode
	ErrOpcode         = provider.ErrOpcode
	ErrState          = provider.ErrState
)
