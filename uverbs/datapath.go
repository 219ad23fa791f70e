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
	QPState   = provider.QPState
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

	SendFence     = provider.SendFence
	SendSignaled  = provider.SendSignaled
	SendSolicited = provider.SendSolicited

	WCSuccess        = provider.WCSuccess
	WCLocLenErr      = provider.WCLocLenErr
	WCLocQPOpErr     = provider.WCLocQPOpErr
	WCLocProtErr     = provider.WCLocProtErr
	WCFlushErr       = provider.WCFlushErr
	WCLocAccessErr   = provider.WCLocAccessErr
	WCRemInvReqErr   = provider.WCRemInvReqErr
	WCRemAccessErr   = provider.WCRemAccessErr
	WCRemOpErr       = provider.WCRemOpErr
	WCRetryExcErr    = provider.WCRetryExcErr
	WCRNRRetryExcErr = provider.WCRNRRetryExcErr
	WCFatalErr       = provider.WCFatalErr

	WCSend        = provider.WCSend
	WCRDMAWrite   = provider.WCRDMAWrite
	WCRDMARead    = provider.WCRDMARead
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
	ErrTooManySGEs    = provider.ErrTooManySGEs
	ErrInlineTooLong  = provider.ErrInlineTooLong
	ErrInlineSGL      = provider.ErrInlineSGL
	ErrMessageTooLong = provider.ErrMessageTooLong
	ErrOpcode         = provider.ErrOpcode
	ErrState          = provider.ErrState
)
