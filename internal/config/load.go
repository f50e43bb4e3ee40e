package config

import (
	"errors"
	"io/fs"
	"reflect"
	"slices"
	"strings"
)

// DefaultFile is read from the working directory when no file is named and it exists.
const DefaultFile = "surefoot.yaml"

// Sources is where a configuration comes from.
type Sources struct {
	// Path names the file, as by --config. Default: SUREFOOT_CONFIG, else surefoot.yaml in the working
	// directory if it is there.
	Path string
	// Environ is the environment as NAME=value. Default: empty.
	Environ []string
	// Flags are the flags that were given. Default: none.
	Flags []Flag
	// ReadFile reads the configuration and secrets, like os.ReadFile. Required.
	ReadFile func(path string) ([]byte, error)
	// Database makes a missing database URL a fault. Default false.
	Database bool
	// AMQP makes a missing AMQP URL a fault. Default false.
	AMQP bool
}

// Flag is a flag that sets a key.
type Flag struct {
	// Name is shown in faults, such as --log-level.
	Name string
	// Key is the key's path, such as log.level.
	Key string
	// Text is the value.
	Text string
}

// Load reads and checks everything. Its error is a [FaultsError] with every fault of every source.
func Load(src Sources) (*Config, error) {
	config := Default()
	r := &reader{where: map[string]string{}}
	environ := environMap(src.Environ)
	r.layer(&config, func() { r.readFile(src, environ, &config) })
	r.layer(&config, func() { r.readEnv(environ, &config) })
	r.layer(&config, func() { r.readFlags(src.Flags, &config) })
	r.resolveSecrets(src, environ, &config)
	config.check(r)
	r.secure(src, &config)
	if len(r.faults) > 0 {
		return nil, r.faults
	}
	return &config, nil
}

func environMap(environ []string) map[string]string {
	values := make(map[string]string, len(environ))
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		values[name] = value
	}
	return values
}

func (r *reader) readFile(src Sources, environ map[string]string, config *Config) {
	source, path := "--config", src.Path
	if path == "" {
		source, path = "SUREFOOT_CONFIG", environ["SUREFOOT_CONFIG"]
	}
	optional := path == ""
	if optional {
		path = DefaultFile
	}
	data, err := src.ReadFile(path)
	switch {
	case optional && errors.Is(err, fs.ErrNotExist):
		return
	case errors.Is(err, fs.ErrNotExist):
		r.fault(source, "", "cannot read the configuration: %s; `surefoot init --output FILE` writes one to begin with", err)
		return
	case err != nil:
		r.fault(source, "", "cannot read the configuration: %s", err)
		return
	}
	r.file = path
	r.readYAML(data, config)
}

func (r *reader) readFlags(flags []Flag, config *Config) {
	all := leaves(reflect.TypeFor[Config](), "", nil)
	for _, flag := range flags {
		at := slices.IndexFunc(all, func(l leaf) bool { return l.key == flag.Key })
		if at < 0 {
			r.fault(flag.Name, flag.Key, "is not a key of the configuration")
			continue
		}
		r.setLeaf(config, all[at], flag.Name, flag.Text)
	}
}
