package doctor

import (
	"time"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// Strict are limits that anything exceeds.
func (o Options) Strict() Options {
	o.limits = limits{clock: time.Hour, transaction: time.Millisecond, table: 1, dead: 0, wear: 1e-6}
	return o
}

// JudgeVersion is for brokers that cannot be had.
func JudgeVersion(v rabbit.Version) Finding { return judgeVersion(v) }
