package config

import (
	"encoding"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/goccy/go-yaml/ast"
)

var (
	errText     = errors.New("must be text: put it into quotes")
	errTruth    = errors.New("must be true or false")
	errInteger  = errors.New("must be a whole number")
	errNumber   = errors.New("must be a number")
	errDuration = errors.New("must be a duration with its unit, such as 200ms, 10s, 5m or 168h")
)

var (
	durationType = reflect.TypeFor[time.Duration]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// isScalar tells whether a value of this type is written as one scalar.
func isScalar(of reflect.Type) bool {
	if reflect.PointerTo(of).Implements(textType) {
		return true
	}
	return slices.Contains([]reflect.Kind{
		reflect.String, reflect.Bool, reflect.Float64,
		reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint32, reflect.Uint64,
	}, of.Kind())
}

func (r *reader) decodeScalar(node ast.Node, value reflect.Value, path string) {
	text, isText, ok := scalarText(node)
	if !ok {
		r.fault(r.line(node.GetToken()), path, "must be a single value")
		return
	}
	if wantsText(value) && !isText {
		r.fault(r.line(node.GetToken()), path, "%s", errText)
		return
	}
	if err := setScalar(value, text); err != nil {
		r.fault(r.line(node.GetToken()), path, "%s", err)
	}
}

// wantsText is true for plain strings: an unquoted 5 or true in their place is more likely a slip.
func wantsText(value reflect.Value) bool {
	return value.Kind() == reflect.String && !reflect.PointerTo(value.Type()).Implements(textType)
}

func scalarText(node ast.Node) (text string, isText, ok bool) {
	switch node := node.(type) {
	case *ast.StringNode:
		return node.Value, true, true
	case *ast.LiteralNode:
		return node.Value.Value, true, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return node.GetToken().Value, false, true
	}
	return "", false, false
}

// setScalar reads text into value. Its errors never repeat the text, which may be a secret.
func setScalar(value reflect.Value, text string) error {
	if value.Type() == durationType {
		return setDuration(value, text)
	}
	if target, ok := reflect.TypeAssert[encoding.TextUnmarshaler](value.Addr()); ok {
		return target.UnmarshalText([]byte(text))
	}
	switch kind := value.Kind(); {
	case kind == reflect.String:
		value.SetString(text)
		return nil
	case kind == reflect.Bool:
		return setBool(value, text)
	case value.CanFloat():
		return setFloat(value, text)
	}
	return setInteger(value, text)
}

func setFloat(value reflect.Value, text string) error {
	number, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return errNumber
	}
	value.SetFloat(number)
	return nil
}

func setDuration(value reflect.Value, text string) error {
	duration, err := time.ParseDuration(text)
	if err != nil {
		return errDuration
	}
	value.SetInt(int64(duration))
	return nil
}

func setBool(value reflect.Value, text string) error {
	switch text {
	case "true", "false":
		value.SetBool(text == "true")
		return nil
	}
	return errTruth
}

func setInteger(value reflect.Value, text string) error {
	if value.CanUint() {
		number, err := strconv.ParseUint(text, 10, value.Type().Bits())
		if err != nil {
			return errInteger
		}
		value.SetUint(number)
		return nil
	}
	number, err := strconv.ParseInt(text, 10, value.Type().Bits())
	if err != nil {
		return errInteger
	}
	value.SetInt(number)
	return nil
}
