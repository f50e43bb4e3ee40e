package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// decode reads node into value, which stands at path. Null leaves the default: a section whose keys are all
// commented out is null.
func (r *reader) decode(node ast.Node, value reflect.Value, path string) {
	switch node := node.(type) {
	case nil, *ast.NullNode, *ast.CommentGroupNode:
		return
	case *ast.AnchorNode, *ast.AliasNode:
		r.fault(r.line(node.GetToken()), path, "anchors and aliases are not supported: write the value out")
		return
	case *ast.TagNode:
		r.fault(r.line(node.GetToken()), path, "tags such as !!str are not supported")
		return
	}
	if path != "" {
		r.set(path, r.line(node.GetToken()))
	}
	if isScalar(value.Type()) {
		r.decodeScalar(node, value, path)
		return
	}
	r.decodeCompound(node, value, path)
}

// decodeCompound reads into what holds further values. Other kinds are not used in configurations.
func (r *reader) decodeCompound(node ast.Node, value reflect.Value, path string) {
	decoders := map[reflect.Kind]func(ast.Node, reflect.Value, string){
		reflect.Struct: r.decodeStruct, reflect.Map: r.decodeMap, reflect.Slice: r.decodeSlice, reflect.Pointer: r.decodePointer,
	}
	if decode := decoders[value.Kind()]; decode != nil {
		decode(node, value, path)
	}
}

func (r *reader) decodePointer(node ast.Node, value reflect.Value, path string) {
	value.Set(reflect.New(value.Type().Elem()))
	r.decode(node, value.Elem(), path)
}

func (r *reader) decodeStruct(node ast.Node, value reflect.Value, path string) {
	fields := fieldsOf(value.Type())
	r.eachPair(node, path, func(key string, pair *ast.MappingValueNode) {
		at := join(path, key)
		index, known := fields[key]
		if !known {
			r.fault(r.line(pair.Key.GetToken()), at, "unknown key%s", hint(key, slices.Collect(maps.Keys(fields))))
			return
		}
		r.decode(pair.Value, value.FieldByIndex(index), at)
	})
}

func (r *reader) decodeMap(node ast.Node, value reflect.Value, path string) {
	if value.IsNil() {
		value.Set(reflect.MakeMap(value.Type()))
	}
	r.eachPair(node, path, func(key string, pair *ast.MappingValueNode) {
		at := fmt.Sprintf("%s[%s]", path, key)
		r.set(at, r.line(pair.Key.GetToken()))
		element := reflect.New(value.Type().Elem()).Elem()
		r.decode(pair.Value, element, at)
		value.SetMapIndex(reflect.ValueOf(key).Convert(value.Type().Key()), element)
	})
}

func (r *reader) decodeSlice(node ast.Node, value reflect.Value, path string) {
	list, ok := node.(*ast.SequenceNode)
	if !ok {
		r.fault(r.line(node.GetToken()), path, "must be a list")
		return
	}
	value.Set(reflect.MakeSlice(value.Type(), 0, len(list.Values)))
	for i, item := range list.Values {
		at := fmt.Sprintf("%s[%d]", path, i)
		if item != nil {
			r.set(at, r.line(item.GetToken()))
		}
		element := reflect.New(value.Type().Elem()).Elem()
		r.decode(item, element, at)
		value.Set(reflect.Append(value, element))
	}
}

// eachPair calls visit for each pair of a mapping, and reports keys that are no text or come twice.
func (r *reader) eachPair(node ast.Node, path string, visit func(key string, pair *ast.MappingValueNode)) {
	seen := map[string]string{}
	for _, pair := range r.pairs(node, path) {
		source := r.line(pair.Key.GetToken())
		key, ok := keyText(pair.Key)
		if !ok {
			r.fault(source, path, "a key must be plain text")
			continue
		}
		if first, twice := seen[key]; twice {
			r.fault(source, join(path, key), "is set twice, first at %s", first)
			continue
		}
		seen[key] = source
		visit(key, pair)
	}
}

func (r *reader) pairs(node ast.Node, path string) []*ast.MappingValueNode {
	switch node := node.(type) {
	case *ast.MappingNode:
		return node.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{node}
	}
	r.fault(r.line(node.GetToken()), path, "must be a mapping of keys to values")
	return nil
}

// keyText is the text of a key. Numbers and the like count as text: a queue may be called 42.
func keyText(key ast.MapKeyNode) (string, bool) {
	if text, ok := key.(*ast.StringNode); ok {
		return text.Value, true
	}
	switch key.(type) {
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return key.GetToken().Value, true
	}
	return "", false
}

// fieldsOf maps the keys of a struct to its fields. Fields without a yaml tag are not configurable;
// embedded structs tagged ",inline" lend their keys.
func fieldsOf(of reflect.Type) map[string][]int {
	fields := map[string][]int{}
	for i := range of.NumField() {
		field := of.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		if options == "inline" {
			for key, index := range fieldsOf(field.Type) {
				fields[key] = append([]int{i}, index...)
			}
		} else if name != "" && name != "-" {
			fields[name] = []int{i}
		}
	}
	return fields
}
