package fault

// Points lists every named step, for the crash harness and for Arm's check.
func Points() []string {
	return []string{
		"consumer.after-deliver",
		"consumer.after-mark",
		"consumer.before-commit",
		"consumer.after-commit",
		"consumer.before-retry",
		"consumer.after-retry",
		"consumer.before-dead-letter",
		"consumer.after-dead-letter",
		"consumer.after-ack",
		"watchdog.after-claim",
		"watchdog.after-change",
		"watchdog.after-enqueue",
		"watchdog.before-commit",
		"watchdog.after-commit",
		"redrive.after-start",
		"redrive.before-publish",
		"redrive.after-publish",
		"redrive.after-confirm",
		"redrive.after-record",
		"redrive.after-ack",
		"redrive.before-close",
		"discard.after-start",
		"discard.before-record",
		"discard.after-record",
		"discard.after-ack",
		"discard.before-close",
	}
}
