package cli

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/internal/config"
)

//go:embed init.yaml
var initial []byte

func initCommand(s *session) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use: "init", Short: "Write a commented surefoot.yaml to begin with; never overwrites a file", Args: cobra.NoArgs,
		Long: "Write a commented surefoot.yaml to begin with: valid as it is, with one queue, and with the other settings in comments.\n" +
			"A file that is there is left as it is, and the exit code is 2.",
		RunE: func(*cobra.Command, []string) error {
			if s.dryRun {
				_, err := s.env.Stdout.Write(initial)
				return err
			}
			if err := create(path, initial); err != nil {
				return err
			}
			s.note("wrote %s; its first lines say what comes next", path)
			return nil
		},
	}
	cmd.Flags().StringVar(&path, "output", config.DefaultFile, "write this `file`")
	cmd.Flags().BoolVar(&s.dryRun, "dry-run", false, "print it, and write no file")
	return cmd
}

// create writes a file that was not there; one that cannot be written whole is taken away again.
func create(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return usageErrorf("take another name with --output, or look with --dry-run at what would be written", "%s is there already, and stays as it is", path)
	}
	if err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	_, err = file.Write(content)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write the configuration: %w", errors.Join(err, os.Remove(path)))
	}
	return nil
}
