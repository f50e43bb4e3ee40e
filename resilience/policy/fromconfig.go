package policy

import (
	"cmp"
	"fmt"
	"os"

	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/message"
)

// FromConfig returns the options of a dependency from the configuration that the command surefoot reads (section dependencies):
// the file at path with the SUREFOOT_* variables over it, as strictly; every fault is in the error. An empty path is
// SUREFOOT_CONFIG, else surefoot.yaml in the working directory. Pool, Logger and the rest are the caller's to set; the
// configuration gives Name, Settings and Schema.
func FromConfig(path, name string) (Options, error) {
	c, err := config.Load(config.Sources{Path: path, Environ: os.Environ(), ReadFile: os.ReadFile})
	if err != nil {
		return Options{}, fmt.Errorf("policy: %w", err)
	}
	settings, known := c.Dependencies[name]
	if !known {
		return Options{}, fmt.Errorf("policy: %q is not under dependencies in %s", message.Clip(name, message.MaxShortString), cmp.Or(path, "the configuration"))
	}
	return Options{Name: name, Settings: settings, Schema: c.Database.Schema}, nil
}
