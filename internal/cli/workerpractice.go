package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/topology"
)

// Of what people practise with.
const (
	practiceQueue = "practice.mail"
	practiceType  = "practice.order"
	practiceFile  = "practice.mended" // in the working directory
	// practicePermanent is the exit code by which a program says that a message can never be handled (docs/workers.md).
	practicePermanent = 65
	// maxPractice bounds what the practice worker reads of a message, in bytes.
	maxPractice = 1 << 20
)

// practiceSpec is a queue whose messages fail on demand, soon: its worker is this program.
func practiceSpec(program, mended string) topology.Spec {
	return topology.Spec{Exchange: "practice", Queues: []topology.Queue{{
		Name: practiceQueue, Bindings: []string{practiceType}, Retry: []time.Duration{2 * time.Second}, MaxAttempts: 3, Concurrency: 4,
		Target: &topology.Target{Exec: []string{program, "worker", "practice", "--mended", mended}},
	}}}
}

func workerPractice(s *session) *cobra.Command {
	mended := ""
	cmd := &cobra.Command{
		Use: "practice", Short: "Be a worker that fails on demand, to practise with dead letters", Args: cobra.NoArgs,
		Long: "Be a worker that fails on demand, one message on standard input, as the exec target of a queue (docs/workers.md):\n\n" +
			"  target: {exec: [surefoot, worker, practice, --mended, /tmp/mended]}\n\n" +
			`A message whose JSON payload has "fail": "permanent" becomes a dead letter at once, one with "fail": "transient" after all its` + "\n" +
			"retries. Any other is done. While the file of --mended exists nothing fails: make it, and a redrive succeeds. `surefoot dev`\n" +
			"has a queue with this worker.",
		RunE: func(*cobra.Command, []string) error { return s.practise(mended) },
	}
	cmd.Flags().StringVar(&mended, "mended", "", "while this `file` exists nothing fails")
	return cmd
}

func (s *session) practise(mended string) error {
	payload, err := io.ReadAll(io.LimitReader(s.env.Stdin, maxPractice))
	if err != nil {
		return fmt.Errorf("read the message: %w", err)
	}
	var wanted struct {
		Fail string `json:"fail"`
	}
	_ = json.Unmarshal(payload, &wanted) // of a message that is nothing of the kind nothing is asked
	code := map[string]int{"permanent": practicePermanent, "transient": ExitFailed}[strings.ToLower(wanted.Fail)]
	if code == ExitDone {
		return nil
	}
	if mended != "" {
		if _, err := os.Stat(mended); err == nil {
			return nil
		}
	}
	return &exitError{code: code, err: fmt.Errorf("the mail server refuses this order, for it asks the practice worker to fail: %s", strings.ToLower(wanted.Fail))}
}
