package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/surefoot-mq/surefoot/internal/access"
)

func consoleHashPassword(s *session) *cobra.Command {
	name, role := "", ""
	cmd := &cobra.Command{
		Use: "hash-password", Short: "Make a line for the users of the console, from a password on stdin", Args: cobra.NoArgs,
		Long: "Make a line NAME:ROLE:HASH for console.login.users_file. The password comes from the terminal, which does not show it, or from the\n" +
			"first line of stdin, and never from an argument, which others could see. It has 12 to 72 bytes.\n\n" +
			"Roles: view looks, with what is masked masked; operate also redrives, pauses, and acts on sagas and outbox; admin also discards and reveals.",
		Example: "  surefoot console hash-password --name ann --role operate >> console-users",
		RunE: func(cmd *cobra.Command, _ []string) error {
			as, err := access.RoleOf(role)
			if err != nil {
				return usageErrorf("", "--role: %w", err)
			}
			password, err := s.password(cmd.Context())
			if err != nil {
				return err
			}
			line, err := access.HashPassword(name, as, password)
			if err != nil {
				return usageErrorf("", "%w", err)
			}
			_, err = fmt.Fprintln(s.env.Stdout, line)
			return err
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "`name` to log in with, which the audit has")
	cmd.Flags().StringVar(&role, "role", "", "`role`: view, operate or admin")
	_ = cmd.MarkFlagRequired("name") // they are there
	_ = cmd.MarkFlagRequired("role")
	return cmd
}

// password reads one: twice from a terminal, which does not show it, and else the first line.
func (s *session) password(ctx context.Context) (string, error) {
	terminal, ok := s.env.Stdin.(*os.File)
	if !s.env.StdinTTY || !ok {
		line, err := s.readLine(ctx, 1<<10)
		return strings.TrimRight(line, "\r\n"), err
	}
	first, err := s.hidden(ctx, terminal, "password: ")
	if err != nil {
		return "", err
	}
	again, err := s.hidden(ctx, terminal, "once more: ")
	if err == nil && first != again {
		err = usageErrorf("", "these are two passwords: nothing was made")
	}
	return first, err
}

// hidden asks on a terminal. However it ends, the terminal shows again what is typed.
func (s *session) hidden(ctx context.Context, terminal *os.File, prompt string) (string, error) {
	fd := int(terminal.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return "", fmt.Errorf("look at the terminal: %w", err)
	}
	fmt.Fprint(s.env.Stderr, prompt)
	type result struct {
		text []byte
		err  error
	}
	read := make(chan result, 1)
	go func() {
		text, err := term.ReadPassword(fd)
		read <- result{text, err}
	}()
	select {
	case got := <-read:
		fmt.Fprintln(s.env.Stderr)
		if got.err != nil {
			return "", fmt.Errorf("read the password: %w", got.err)
		}
		return string(got.text), nil
	case <-ctx.Done():
		return "", errors.Join(fmt.Errorf("wait for the password: %w", ctx.Err()), term.Restore(fd, before))
	}
}
