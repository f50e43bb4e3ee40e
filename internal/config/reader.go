package config

import (
	"fmt"
	"strings"
)

// reader gathers the values of all sources into one Config, and every fault on the way.
type reader struct {
	faults FaultsError
	// where remembers which source set a key, so that later checks can point there.
	where map[string]string
	// file is the name of the file in faults; "" when there is none.
	file string
}

func (r *reader) fault(source, key, format string, args ...any) {
	r.faults = append(r.faults, Fault{Source: source, Key: key, Problem: fmt.Sprintf(format, args...)})
}

// set remembers that source has set key.
func (r *reader) set(key, source string) { r.where[key] = source }

// wrong reports a value that was read well but is not acceptable.
func (r *reader) wrong(key, format string, args ...any) {
	r.fault(r.sourceOf(key), key, format, args...)
}

// sourceOf finds where key, or the nearest section around it, was set.
func (r *reader) sourceOf(key string) string {
	for at := key; at != ""; at = parent(at) {
		if source, ok := r.where[at]; ok {
			return source
		}
	}
	return r.file
}

func parent(key string) string {
	return key[:max(strings.LastIndexAny(key, ".["), 0)]
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
