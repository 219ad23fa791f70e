package rdmadev

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmadev"
	"github.com/goverbs/verbs/uverbs"
)

// TestResources makes one of each resource, and compares the lists with those of iproute2.
func TestResources(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		labtest.Needs(t, device, uverbs.FeatureSRQ)
		ctx := labtest.OpenDevice(t, device)
		pd := labtest.Made(ctx.AllocPD())(t)
		cq := labtest.Made(ctx.CreateCQ(uverbs.CQOptions{Depth: 100}))(t)
		srq := labtest.Made(pd.CreateSRQ(uverbs.SRQOptions{}))(t)
		labtest.Made(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, SRQ: srq}))(t)
		labtest.Made(pd.AllocMR(12345, verbs.AccessRemoteRead, uverbs.MROptions{}))(t)
		d := labtest.Must(rdmadev.Find(device))(t)
		addressed := slices.Contains(labtest.Addressed(), device)
		if addressed {
			labtest.Connect(context.Background(), t, labtest.AddrOf(device)+":0", cm.Options{}, cm.Options{})
		}
		counts := labtest.Must(d.Counts())(t)
		lengths := rdmadev.Counts{}

		type qp struct {
			Num     uint32 `json:"lqpn"`
			Port    int    `json:"port"`
			Type    string `json:"type"`
			State   string `json:"state"`
			Remote  uint32 `json:"rqpn"`
			RecvPSN uint32 `json:"rq-psn"`
			SendPSN uint32 `json:"sq-psn"`
			PD      uint32 `json:"pdn"`
			PID     int    `json:"pid"`
			Comm    string `json:"comm"`
		}
		var qps []qp
		for _, r := range labtest.Must(d.QPs())(t) {
			lengths.QP++
			qps = append(qps, qp{r.Num, r.Port, r.Type.String(), r.State.String(), r.RemoteNum, r.RecvPSN, r.SendPSN, r.PD, r.TID, comm(r.Owner)})
		}
		compareJSON(t, qps, rdmaJSON[qp](t, "res", "show", "qp", "link", device))

		type cqLine struct {
			Num        uint32 `json:"cqn"`
			Depth      int    `json:"cqe"`
			Users      int    `json:"users"`
			PollCtx    string `json:"poll-ctx"`
			Moderation bool   `json:"adaptive-moderation"`
			Context    uint32 `json:"ctxn"`
			PID        int    `json:"pid"`
			Comm       string `json:"comm"`
		}
		var cqs []cqLine
		for _, r := range labtest.Must(d.CQs())(t) {
			lengths.CQ++
			cqs = append(cqs, cqLine{r.Num, r.Depth, r.Users, strings.ToUpper(strings.ReplaceAll(r.PollContext, " ", "_")),
				r.AdaptiveModeration, r.Context, r.TID, comm(r.Owner)})
		}
		compareJSON(t, cqs, rdmaJSON[cqLine](t, "res", "show", "cq", "dev", device))

		type mr struct {
			Num    uint32 `json:"mrn"`
			RKey   string `json:"rkey"`
			LKey   string `json:"lkey"`
			Length uint64 `json:"mrlen"`
			PD     uint32 `json:"pdn"`
			PID    int    `json:"pid"`
			Comm   string `json:"comm"`
		}
		var mrs []mr
		for _, r := range labtest.Must(d.MRs())(t) {
			lengths.MR++
			mrs = append(mrs, mr{r.Num, hex(r.RKey), hex(r.LKey), r.Length, r.PD, r.TID, comm(r.Owner)})
		}
		compareJSON(t, mrs, rdmaJSON[mr](t, "res", "show", "mr", "dev", device))

		type pdLine struct {
			Num     uint32 `json:"pdn"`
			Users   int    `json:"users"`
			Context uint32 `json:"ctxn"`
			PID     int    `json:"pid"`
			Comm    string `json:"comm"`
		}
		var pds []pdLine
		for _, r := range labtest.Must(d.PDs())(t) {
			lengths.PD++
			pds = append(pds, pdLine{r.Num, r.Users, r.Context, r.TID, comm(r.Owner)})
		}
		compareJSON(t, pds, rdmaJSON[pdLine](t, "res", "show", "pd", "dev", device))

		type cmID struct {
			Num    uint32 `json:"cm-idn"`
			Port   int    `json:"port"`
			QP     uint32 `json:"lqpn"`
			Type   string `json:"qp-type"`
			State  string `json:"state"`
			Space  string `json:"ps"`
			PID    int    `json:"pid"`
			Comm   string `json:"comm"`
			Local  string `json:"src-addr"`
			Remote string `json:"dst-addr"`
		}
		var ids []cmID
		for _, r := range labtest.Must(d.CMIDs())(t) {
			lengths.CMID++
			id := cmID{Num: r.Num, Port: r.Port, QP: r.QP, State: r.State, Space: r.PortSpace, PID: r.TID, Comm: comm(r.Owner)}
			if r.QP != 0 {
				id.Type = r.QPType.String()
			}
			if r.Local.IsValid() {
				id.Local = r.Local.String()
			}
			if r.Remote.IsValid() {
				id.Remote = r.Remote.String()
			}
			ids = append(ids, id)
		}
		compareJSON(t, ids, rdmaJSON[cmID](t, "res", "show", "cm_id", "link", device))

		type context struct {
			Num  uint32 `json:"ctxn"`
			PID  int    `json:"pid"`
			Comm string `json:"comm"`
		}
		var contexts []context
		for _, r := range labtest.Must(d.Contexts())(t) {
			lengths.Context++
			contexts = append(contexts, context{r.Num, r.TID, comm(r.Owner)})
			if r.PID != os.Getpid() {
				t.Errorf("context %d belongs to process %d", r.Num, r.PID)
			}
		}
		compareJSON(t, contexts, rdmaJSON[context](t, "res", "show", "ctx", "dev", device))

		type srqLine struct {
			Num  uint32 `json:"srqn"`
			Type string `json:"type"`
			PD   uint32 `json:"pdn"`
			PID  int    `json:"pid"`
			Comm string `json:"comm"`
		}
		var srqs []srqLine
		for _, r := range labtest.Must(d.SRQs())(t) {
			lengths.SRQ++
			srqs = append(srqs, srqLine{r.Num, r.Type, r.PD, r.TID, comm(r.Owner)})
			// The kernel's mlx5 has SRQs of its own, without QPs.
			if r.Kernel == "" && (len(r.QPs) != 1 || r.QPs[0].First != r.QPs[0].Last || r.QPs[0].First == 0) {
				t.Errorf("SRQ %d has QPs %v", r.Num, r.QPs)
			}
		}
		compareJSON(t, srqs, rdmaJSON[srqLine](t, "res", "show", "srq", "dev", device))

		if counts != lengths || min(counts.PD, counts.CQ, counts.QP, counts.MR, counts.Context, counts.SRQ) == 0 || addressed && counts.CMID == 0 {
			t.Errorf("counted %+v, listed %+v", counts, lengths)
		}
	})
}

func hex(v uint32) string { return fmt.Sprintf("%x", v) }

// comm returns an owner's name as rdma prints it.
func comm(o rdmadev.Owner) string {
	if o.Kernel != "" {
		return o.Kernel
	}
	return o.Comm
}
