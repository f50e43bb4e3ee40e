// Package cli is the command line: `surefoot <noun> <verb>`. It turns arguments into calls of the packages
// that do the work, their results into output, and their errors into exit codes.
//
// # Rules for every command
//
//   - stdout carries data and nothing else: tables, JSON, names. Prompts, progress, logs, hints and errors go
//     to stderr. An empty list is `[]`.
//   - Whatever came from a message passes [Escape] or [EscapeBlock] before it reaches a terminal; render and
//     renderOne do that for their cells.
//   - Errors are returned, with the exit code as their type: usageErrorf (2), partly (3), denied (4),
//     unreachable (5), differs (6); the codes of services' errors are found by themselves. See exit.go.
//   - A command exists once it works.
//
// # To add a command
//
// Write <noun>.go in this package with one function
//
//	func outboxCommand(s *session) *cobra.Command {
//		return noun("outbox", "Look at rows that wait to be published", outboxLs(s), outboxDiscard(s))
//	}
//
// and add it to commands in root.go. A verb is a *cobra.Command with RunE, here one that lists:
//
//	func outboxLs(s *session) *cobra.Command {
//		cmd := &cobra.Command{
//			Use: "ls", Short: "List rows", Args: cobra.NoArgs,
//			RunE: func(cmd *cobra.Command, _ []string) error {
//				db, err := s.database(cmd.Context())
//				if err != nil {
//					return err
//				}
//				rows, err := outbox.List(cmd.Context(), db.pool, db.schema)
//				if err != nil {
//					return err
//				}
//				return render(s, listing[outbox.Row]{
//					Items: rows, Empty: "no rows are parked",
//					Name:    func(r outbox.Row) string { return r.ID },
//					Columns: []column[outbox.Row]{{"ID", func(r outbox.Row) string { return r.ID }}},
//				})
//			},
//		}
//		s.outputFlag(cmd)
//		return cmd
//	}
//
// A verb that changes something calls s.changeFlags(cmd) for --dry-run and --yes, shows what it would do and
// stops when s.dryRun is set, and asks with s.confirm before it does it; s.operator() is audit's "who". A role
// (`surefoot relay run`) is roleCommand(s, short, need{...}, "relay"). Whatever else is opened is closed by s.onClose.
//
// Tests call [Main] with buffers and look at stdout, stderr and the code.
package cli
