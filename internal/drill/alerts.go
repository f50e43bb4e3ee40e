package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/surefoot-mq/surefoot/deploy/prometheus"
	"github.com/surefoot-mq/surefoot/internal/child"
)

// promtool evaluates rules; the drill of the game day needs it. SUREFOOT_PROMTOOL names another one, as for scripts/alerts.
const promtool = "promtool"

// program is what is run for a tool in this environment.
func program(tool string, environ []string) string {
	for _, entry := range environ {
		if named, ok := strings.CutPrefix(entry, "SUREFOOT_PROMTOOL="); ok && tool == promtool && named != "" {
			return named
		}
	}
	return tool
}

// nothing is how promtool says that an expression had no result.
var nothing = regexp.MustCompile(`got: *nil`)

// fires has promtool evaluate the rules over a recording, and tells whether an alert with these labels was firing at any time.
func (s *stage) fires(ctx context.Context, r *recording, a GameDayAlert) (bool, error) {
	dir, err := s.directory()
	if err != nil {
		return false, err
	}
	series, minutes := r.series()
	labels := fmt.Sprintf(`alertname=%q, alertstate="firing"`, a.Alert)
	if a.Owner != "" {
		labels += fmt.Sprintf(`, owner=%q`, a.Owner)
	}
	type m = map[string]any
	test, err := json.Marshal(m{ // which is YAML, too
		"rule_files": []string{"rules.yml"}, "evaluation_interval": "1m",
		"tests": []m{{
			"interval": "1m", "input_series": series,
			"promql_expr_test": []m{{
				"expr": "count(count_over_time(ALERTS{" + labels + "}[1d])) > bool 0", "eval_time": fmt.Sprintf("%dm", minutes),
				"exp_samples": []m{{"labels": "{}", "value": 1}},
			}},
		}},
	})
	if err != nil {
		return false, err
	}
	for name, text := range map[string][]byte{"rules.yml": []byte(prometheus.Rules), "test.yml": test} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return false, fmt.Errorf("write for promtool: %w", err)
		}
	}
	cmd := exec.CommandContext(ctx, program(promtool, s.o.Environ), "test", "rules", "test.yml")
	cmd.Dir, cmd.WaitDelay = dir, time.Second
	out := &child.Tail{}
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	if _, ended := errors.AsType[*exec.ExitError](err); ended && nothing.MatchString(out.String()) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("promtool: %w: %s", err, out)
	}
	return true, nil
}
