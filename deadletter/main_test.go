package deadletter_test

import (
	"context"
	"os"
	"testing"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// TestMain also is the process that crash tests kill: the real code, in a process of its own.
func TestMain(m *testing.M) { testkit.MainOrChild(m, "DLQ_CHILD", child) }

func child() error {
	ctx := context.Background()
	pool, err := pg.Open(ctx, pg.Options{URL: os.Getenv("DLQ_DATABASE")})
	if err != nil {
		return err
	}
	defer pool.Close()
	d, err := deadletter.New(deadletter.Options{
		Pool: pool, Schema: os.Getenv("DLQ_SCHEMA"), AMQPURL: os.Getenv("DLQ_AMQP"), Window: crashWindow,
		Queues: []deadletter.Queue{{Name: "orders.saga"}},
	})
	if err == nil {
		err = fault.Arm(os.Getenv("DLQ_FAULT"))
	}
	if err != nil {
		return err
	}
	common := deadletter.Common{Queue: "orders.saga", Who: "child", Reason: "test", Filter: deadletter.Filter{Type: "order.paid"}}
	switch os.Getenv("DLQ_CHILD") {
	case "discard":
		_, err = d.Discard(ctx, deadletter.DiscardRequest{Common: common})
	case "run":
		var run deadletter.Run
		if run, err = d.Plan(ctx, deadletter.PlanRequest{Common: common, RunSettings: deadletter.RunSettings{MaxFailures: -1}}); err == nil {
			_, err = d.StartRun(ctx, deadletter.DriveRequest{Run: run.ID, Who: "child"}, false)
		}
	default:
		_, err = d.Redrive(ctx, deadletter.RedriveRequest{Common: common})
	}
	return err
}
