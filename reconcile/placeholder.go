package reconcile

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/surefoot-mq/surefoot/message"
)

// placeholder is {name} in a URL, in a header or in SQL.
var placeholder = regexp.MustCompile(`\{([A-Za-z_][A-Za-z0-9_]{0,62})\}`)

// parameters puts $1, $2, ... in place of the placeholders and returns their names in that order.
func parameters(query string) (text string, names []string) {
	text = placeholder.ReplaceAllStringFunc(query, func(found string) string {
		name := found[1 : len(found)-1]
		at := slices.Index(names, name)
		if at < 0 {
			names = append(names, name)
			at = len(names) - 1
		}
		return fmt.Sprintf("$%d::text", at+1)
	})
	return text, names
}

// placeholdersOf lists the names in a text.
func placeholdersOf(texts ...string) (names []string) {
	for _, text := range texts {
		for _, found := range placeholder.FindAllStringSubmatch(text, -1) {
			names = append(names, found[1])
		}
	}
	return names
}

// fill puts a suspect's values in place of the placeholders, each through escape.
func fill(template string, s Suspect, escape func(string) (string, error)) (string, error) {
	var failed error
	text := placeholder.ReplaceAllStringFunc(template, func(found string) string {
		value, err := s.Value(found[1 : len(found)-1])
		if err == nil {
			value, err = escape(value)
		}
		failed = errors.Join(failed, err)
		return value
	})
	return text, failed
}

// fillURL fills the path and the query of a URL, each escaped as is right there.
func fillURL(template string, s Suspect) (string, error) {
	path, query, some := strings.Cut(template, "?")
	path, err := fill(path, s, pathSegment)
	if err != nil || !some {
		return path, err
	}
	query, err = fill(query, s, func(value string) (string, error) { return url.QueryEscape(value), nil })
	return path + "?" + query, err
}

// pathSegment escapes a value for a path. One with a part that is empty or only dots would lead elsewhere: servers clean paths of them,
// escaped or not.
func pathSegment(value string) (string, error) {
	for part := range strings.SplitSeq(strings.ReplaceAll(value, `\`, "/"), "/") {
		if strings.Trim(part, ".") == "" {
			return "", fmt.Errorf("%q cannot be part of a path", message.Clip(value, maxText))
		}
	}
	return url.PathEscape(value), nil
}
