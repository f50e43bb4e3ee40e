package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"
)

// prefix begins the name of every environment variable of ours.
const prefix = "SUREFOOT_"

// leaf is a key that one text can set: every scalar outside lists and maps.
type leaf struct {
	key   string
	env   string
	index []int
}

// leaves lists the leaves of a configuration struct in the order of its fields.
func leaves(of reflect.Type, path string, index []int) []leaf {
	var found []leaf
	for i := range of.NumField() {
		field := of.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		if (name == "" || name == "-") && options != "inline" {
			continue
		}
		at := path
		if options != "inline" {
			at = join(path, name)
		}
		here := append(slices.Clone(index), i)
		switch {
		case isScalar(field.Type):
			found = append(found, leaf{key: at, env: envName(field, at), index: here})
		case field.Type.Kind() == reflect.Struct:
			found = append(found, leaves(field.Type, at, here)...)
		}
	}
	return found
}

func envName(field reflect.StructField, key string) string {
	if name := field.Tag.Get("env"); name != "" {
		return name
	}
	return prefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// readEnv applies the environment, given as NAME to value. An empty variable counts as unset: that is what
// templates make of a value that they do not have.
func (r *reader) readEnv(environ map[string]string, config *Config) {
	known := []string{"SUREFOOT_CONFIG", "SUREFOOT_OPERATOR"} // read elsewhere
	for _, leaf := range leaves(reflect.TypeFor[Config](), "", nil) {
		known = append(known, leaf.env)
		if text := environ[leaf.env]; text != "" {
			r.setLeaf(config, leaf, leaf.env, text)
		}
	}
	r.strangers(environ, known)
}

func (r *reader) setLeaf(config *Config, leaf leaf, source, text string) {
	r.set(leaf.key, source)
	if err := setScalar(reflect.ValueOf(config).Elem().FieldByIndex(leaf.index), text); err != nil {
		r.fault(source, leaf.key, "%s", err)
	}
}

// strangers reports variables that look like a misspelt one of ours. Others with the prefix are left alone:
// they may belong to a wrapper, or to Kubernetes, which sets SUREFOOT_PORT_9464_TCP_ADDR and the like in every
// container when a service is called surefoot.
func (r *reader) strangers(environ map[string]string, known []string) {
	for _, name := range slices.Sorted(maps.Keys(environ)) {
		if !strings.HasPrefix(name, prefix) || slices.Contains(known, name) {
			continue
		}
		if near := Nearest(name, known); near != "" && distance(name, near) <= 2 {
			r.fault(name, "", "unknown variable; did you mean %s?", near)
		}
	}
}
