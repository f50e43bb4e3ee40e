package drill

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/surefoot-mq/surefoot/internal/child"
)

// Stack is the local stack that scripts/stack keeps.
type Stack struct {
	// Script is the path of scripts/stack; empty: there is none.
	Script string
	// Dir is the stack's directory, SUREFOOT_STACK_DIR.
	Dir string
	// Env is the text of Dir/env, where the stack writes its URLs down; empty: it was never started.
	Env string
}

// refuses says why a service may not be stopped; "" when it may.
func (s Stack) refuses(o Options) string {
	const hint = "; it stops the broker, and only the local stack's may be stopped: start one with scripts/stack up, and call this where scripts/stack is"
	switch {
	case s.Script == "" || s.Env == "":
		return "there is no local stack here" + hint
	case !s.has("SUREFOOT_AMQP_URL", o.AMQPURL) || !s.has("SUREFOOT_DATABASE_URL", o.DatabaseURL):
		return "the services are not those of the local stack in " + s.Dir + hint
	}
	return ""
}

func (s Stack) has(name, url string) bool {
	return strings.Contains("\n"+s.Env+"\n", "\nexport "+name+"='"+url+"'\n")
}

// stackTime covers a stop or a start on a loaded machine.
const stackTime = 90 * time.Second

// call runs the script.
func (s Stack) call(ctx context.Context, environ []string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, stackTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Script, args...)
	cmd.Env = append(append([]string{}, environ...), "SUREFOOT_STACK_DIR="+s.Dir)
	cmd.WaitDelay = time.Second
	out := &child.Tail{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("scripts/stack %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}
