package cli

import (
	"runtime/debug"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

// build is what `surefoot version` tells.
type build struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Schema  int64  `json:"schema"`
	Go      string `json:"go"`
}

func versionCommand(s *session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "version", Short: "Print version, commit and schema version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			b := s.build()
			return renderOne(
				s, b, b.Version,
				column[build]{"version", func(b build) string { return b.Version }},
				column[build]{"commit", func(b build) string { return b.Commit }},
				column[build]{"schema", func(b build) string { return strconv.FormatInt(b.Schema, 10) }},
				column[build]{"go", func(b build) string { return b.Go }},
			)
		},
	}
	s.outputFlag(cmd)
	return cmd
}

// build prefers what the linker was told to what the toolchain recorded.
func (s *session) build() build {
	b := build{Version: s.env.Version, Commit: s.env.Commit, Schema: pg.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.Go = info.GoVersion
	if b.Version == "" {
		b.Version = info.Main.Version
	}
	modified := ""
	for _, setting := range info.Settings {
		switch {
		case setting.Key == "vcs.revision" && b.Commit == "":
			b.Commit = setting.Value
		case setting.Key == "vcs.modified" && setting.Value == "true" && s.env.Commit == "":
			modified = "+modified"
		}
	}
	if b.Commit != "" {
		b.Commit += modified
	}
	return b
}
