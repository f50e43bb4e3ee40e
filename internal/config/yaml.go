package config

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// maxFile bounds the configuration file: a larger one is not a configuration.
const maxFile = 1 << 20

// readYAML decodes data over what into points to. It decodes the syntax tree itself, because the library's
// decoder stops at the first fault and its messages quote the file, passwords included.
func (r *reader) readYAML(data []byte, into any) {
	if len(data) > maxFile {
		r.fault(r.file, "", "is larger than %s: not a configuration", Size(maxFile))
		return
	}
	body, err := parseYAML(data)
	if err != nil {
		r.syntaxFault(err)
		return
	}
	r.decode(body, reflect.ValueOf(into).Elem(), "")
}

func parseYAML(data []byte) (body ast.Node, err error) {
	defer func() {
		if recovered := recover(); recovered != nil {
			body, err = nil, errors.New("cannot be parsed as YAML")
		}
	}()
	file, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, err
	}
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		if body != nil {
			return nil, errors.New("holds several documents: put everything into one")
		}
		body = doc.Body
	}
	return body, nil
}

func (r *reader) syntaxFault(err error) {
	if syntax, ok := errors.AsType[yaml.Error](err); ok && syntax.GetToken() != nil {
		r.fault(r.line(syntax.GetToken()), "", "is not valid YAML: %s", syntax.GetMessage())
		return
	}
	r.fault(r.file, "", "%s", err)
}

// line is a source with its line.
func (r *reader) line(at *token.Token) string {
	if at == nil || at.Position == nil {
		return r.file
	}
	return fmt.Sprintf("%s:%d", r.file, at.Position.Line)
}
