// Package urlfile lets a URL with a password in it be named instead of given: file:///run/secrets/amqp-url stands for what that file holds, and
// whoever connects reads it then, so that a password that is rotated needs no restart.
//
// No error shows anything of what a file holds.
package urlfile

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// maxFile bounds a file that holds a URL.
const maxFile = 64 << 10

const scheme = "file"

// Name returns the URL that stands for what the file holds, with params added as by [With]. A relative path is one of the present working
// directory.
func Name(path string, params url.Values) string {
	if whole, err := filepath.Abs(path); err == nil {
		path = whole
	}
	return (&url.URL{Scheme: scheme, Path: path, RawQuery: params.Encode()}).String()
}

// Resolve returns the URL to connect with: raw, or what the file that it names holds at this moment.
func Resolve(raw string) (string, error) {
	if !strings.HasPrefix(raw, scheme+"://") {
		return raw, nil
	}
	name, err := url.Parse(raw)
	if err != nil || name.Host != "" || name.Path == "" {
		return "", errors.New("a URL of a file is written file:///path/of/the/file")
	}
	text, err := read(name.Path)
	if err != nil {
		return "", err
	}
	return With(text, name.Query()), nil
}

func read(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("the file of a URL cannot be read: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return "", fmt.Errorf("the file of a URL cannot be read: %w", err)
	}
	text, err := Text(data)
	if err != nil {
		return "", fmt.Errorf("%s %w", path, err)
	}
	return text, nil
}

// Text is the URL in a file's content.
func Text(data []byte) (string, error) {
	text := strings.TrimSpace(string(data))
	if text == "" || len(data) > maxFile {
		return "", errors.New("must hold one URL and nothing else")
	}
	if strings.HasPrefix(text, scheme+"://") {
		return "", errors.New("names another file instead of holding a URL")
	}
	return text, nil
}

// With adds parameters to a URL, or to the keywords and values that PostgreSQL takes for one. What it says already stays. What cannot be parsed is
// returned as it is.
func With(raw string, params url.Values) string {
	if len(params) == 0 {
		return raw
	}
	if !strings.Contains(raw, "://") {
		return withKeywords(raw, params)
	}
	u, err := url.Parse(raw)
	if err != nil {
		return raw
	}
	query := u.Query()
	for name, values := range params {
		if !query.Has(name) {
			query[name] = values
		}
	}
	u.RawQuery = query.Encode()
	return u.String()
}

// withKeywords puts them first, for of two equal keywords the last counts.
func withKeywords(raw string, params url.Values) string {
	var added strings.Builder
	quoted := strings.NewReplacer(`\`, `\\`, `'`, `\'`)
	for name := range params {
		fmt.Fprintf(&added, "%s='%s' ", name, quoted.Replace(params.Get(name)))
	}
	return added.String() + raw
}
