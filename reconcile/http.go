package reconcile

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpclient"
)

// maxToken bounds what is read of a file with a bearer token.
const maxToken = 64 << 10

// HTTPOptions of an authority that is another service.
type HTTPOptions struct {
	// Client that makes the requests, under the policy of the service. Required.
	Client *httpclient.Client
	// URL that is got. {key}, {status} and {column} in its path and query stand for what is known of the suspect, escaped. Required.
	URL string
	// Headers of the request; placeholders as in URL. Default: none.
	Headers map[string]string
	// BearerFile holds a token that is sent as authorization; it is read for each question, so it may be replaced. Default: none.
	BearerFile string
	// Field of the JSON answer that holds what the rule calls the answer: a text, a number or true or false; data.status is the field
	// status in the object data. Default: status.
	Field string
	// NotFound is the word by which a 404 says [NotFound]: the value of the field code of its JSON, or of another field, as
	// FIELD=VALUE. Gateways and wrong paths answer 404 in JSON too; they do not say it. Default: NOT_FOUND, which
	// package httpserver's handlers say.
	NotFound string
}

// HTTPAuthority asks another service with GET. Only a JSON object in a success is an answer, and a 404 that says the service's own word
// for it is [NotFound]: that of a proxy, a gateway or a wrong path is none. It is safe for concurrent use.
type HTTPAuthority struct{ o HTTPOptions }

// NewHTTP returns an authority that is another service, or every fault of the options. It does no I/O.
func NewHTTP(o HTTPOptions) (*HTTPAuthority, error) {
	var faults []error
	if o.Client == nil {
		faults = append(faults, errors.New("reconcile: the Client of the HTTP authority is missing"))
	}
	if problem := urlFault(o.URL); problem != "" {
		faults = append(faults, errors.New("reconcile: the URL of the HTTP authority "+problem))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	o.Field = cmp.Or(o.Field, "status")
	o.NotFound = cmp.Or(o.NotFound, string(resilience.CodeNotFound))
	if !strings.Contains(o.NotFound, "=") {
		o.NotFound = "code=" + o.NotFound
	}
	return &HTTPAuthority{o}, nil
}

// urlFault says what is wrong with the URL of an HTTP authority, or "". A placeholder may not say where it leads.
func urlFault(template string) string {
	parsed, err := url.Parse(placeholder.ReplaceAllString(template, "x"))
	switch {
	case template == "":
		return "is missing"
	case err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Host == "":
		return "must be a whole one, such as http://orders:8080/v1/orders/{key}"
	case parsed.User != nil:
		return "has a user or a password in it (not shown); put a token into a file instead"
	case parsed.Fragment != "":
		return "has a fragment, which is never sent"
	}
	authority, _, _ := strings.Cut(strings.SplitN(template, "://", 2)[1], "/")
	if placeholder.MatchString(authority) || placeholder.MatchString(strings.SplitN(template, "://", 2)[0]) {
		return "has a placeholder before its path: a row may not say who is asked"
	}
	return ""
}

func (a *HTTPAuthority) placeholders() []string {
	texts := []string{a.o.URL}
	for _, value := range a.o.Headers {
		texts = append(texts, value)
	}
	return placeholdersOf(texts...)
}

// Ask implements [Authority].
func (a *HTTPAuthority) Ask(ctx context.Context, s Suspect) (string, error) {
	request, err := a.request(ctx, s)
	if err != nil {
		return "", err
	}
	response, err := a.o.Client.Do(request) //nolint:bodyclose // read and closed
	if refusal, ok := errors.AsType[*httpclient.ResponseError](err); ok && refusal.Status == http.StatusNotFound && a.saysNotFound(refusal) {
		return NotFound, nil
	}
	if err != nil {
		return "", fmt.Errorf("ask over HTTP: %w", err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", fmt.Errorf("ask over HTTP: %w", err)
	}
	if response.StatusCode >= http.StatusMultipleChoices {
		return "", fmt.Errorf("ask over HTTP: http status %d is no answer; redirects are not followed", response.StatusCode)
	}
	answer, err := read(body, a.o.Field)
	if err != nil {
		return "", fmt.Errorf("ask over HTTP: http status %d: %w", response.StatusCode, err)
	}
	return answer, nil
}

func (a *HTTPAuthority) request(ctx context.Context, s Suspect) (*http.Request, error) {
	target, err := fillURL(a.o.URL, s)
	if err != nil {
		return nil, fmt.Errorf("URL of the authority: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, errors.New("URL of the authority: what the suspect's columns make of it is none")
	}
	request.Header.Set("Accept", "application/json")
	for name, template := range a.o.Headers {
		value, err := fill(template, s, func(value string) (string, error) { return value, nil })
		if err != nil {
			return nil, fmt.Errorf("header %s of the question: %w", name, err)
		}
		request.Header.Set(name, value)
	}
	if a.o.BearerFile != "" {
		token, err := readToken(a.o.BearerFile)
		if err != nil {
			return nil, err
		}
		request.Header.Set("Authorization", "Bearer "+token)
	}
	return request, nil
}

func readToken(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read the authority's token: %w", err)
	}
	defer file.Close()
	token, err := io.ReadAll(io.LimitReader(file, maxToken))
	if err != nil {
		return "", fmt.Errorf("read the authority's token: %w", err)
	}
	return strings.TrimSpace(string(token)), nil
}

// read takes a field out of a body. Its errors quote nothing of it.
func read(body []byte, field string) (string, error) {
	for name := range strings.SplitSeq(field, ".") {
		var object map[string]json.RawMessage
		if json.Unmarshal(body, &object) != nil {
			return "", fmt.Errorf("the answer is no JSON with the field %s", field)
		}
		raw, there := object[name]
		if !there {
			return "", fmt.Errorf("the answer has no field %s", field)
		}
		body = bytes.TrimSpace(raw)
	}
	answer, err := scalar(body)
	if err != nil {
		return "", fmt.Errorf("field %s of the answer is no single value", field)
	}
	return answer, nil
}

func (a *HTTPAuthority) saysNotFound(refusal *httpclient.ResponseError) bool {
	field, word, _ := strings.Cut(a.o.NotFound, "=")
	said, err := read(refusal.Body, field)
	return err == nil && said == word && isJSON(refusal.Header, refusal.Body)
}

// isJSON tells the words of a service from the page of somebody in between.
func isJSON(header http.Header, body []byte) bool {
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	return err == nil && (kind == "application/json" || kind == "application/problem+json") && json.Valid(body)
}
