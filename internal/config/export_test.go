package config

import "reflect"

// Variables are the environment variables that set something, by key.
func Variables() map[string]string {
	byKey := map[string]string{}
	for _, leaf := range leaves(reflect.TypeFor[Config](), "", nil) {
		byKey[leaf.key] = leaf.env
	}
	return byKey
}
