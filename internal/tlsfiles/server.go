package tlsfiles

import (
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Server is for a listener. With CA each client must show a certificate of these authorities. The files are read here, so that what is
// wrong with them is found at the start, and again for each handshake.
//
// A certificate that is replaced by one that cannot be used, because its key does not fit or it is not valid at this time, stays in use for as long as
// it is valid itself; the authorities are those of the file. Where there is no better one, one that has expired is shown.
//
// told, unless nil, hears what is wrong when that begins or changes, and nil when it is over; at the start that a certificate has expired, too. It
// must not block, and is not called from two goroutines at a time.
func (f Files) Server(told func(error)) (*tls.Config, error) {
	if f.Cert == "" {
		return nil, errors.New("a TLS listener needs cert_file and key_file")
	}
	s := &server{files: f, told: told}
	if _, err := s.current(nil); err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: s.current, GetCertificate: s.certificate}, nil
}

// server is what a listener went on with last.
type server struct {
	files Files
	told  func(error)

	mu      sync.Mutex
	content content     // as it is in use
	config  *tls.Config // of it
	wrong   string      // what was told last
}

// current reads the files, and makes a new configuration only when they have changed, for tickets of sessions are bound to it.
func (s *server) current(*tls.ClientHelloInfo) (*tls.Config, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.reload()
	if s.config == nil {
		return nil, err
	}
	if err == nil {
		err = s.validity(s.content, s.config.Certificates[0])
	}
	s.tell(err)
	return s.config, nil
}

// reload takes what is in the files as far as it can be used, and returns what is wrong with the rest.
func (s *server) reload() error {
	content, err := s.files.read()
	if err != nil || s.config != nil && content.equal(s.content) {
		return s.held(err)
	}
	pairs, wrong := content.certificates()
	if wrong == nil {
		wrong = s.validity(content, pairs[0])
	}
	if wrong != nil && s.config != nil && (pairs == nil || s.validity(s.content, s.config.Certificates[0]) == nil) {
		content.cert, content.key, pairs = s.content.cert, s.content.key, s.config.Certificates
		wrong = s.held(wrong)
		if content.equal(s.content) {
			return wrong
		}
	}
	if pairs == nil {
		return wrong
	}
	config, err := content.server(pairs)
	if err != nil {
		return s.held(err)
	}
	s.content, s.config = content, config
	return wrong
}

// held adds to what is wrong that something else is in use.
func (s *server) held(err error) error {
	if err == nil || s.config == nil {
		return err
	}
	return fmt.Errorf("%w; going on with what it held before", err)
}

// validity says whether a certificate is out of its time.
func (s *server) validity(c content, pair tls.Certificate) error {
	now := time.Now
	if s.files.Now != nil {
		now = s.files.Now
	}
	return outOfTime(pair.Leaf, c.files.Cert, now())
}

// tell says the same once.
func (s *server) tell(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if s.told == nil || text == s.wrong {
		return
	}
	s.wrong = text
	s.told(err)
}

// certificate is never asked by a handshake, which has a configuration of its own; http.Server.ServeTLS wants to see that there is one.
func (s *server) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	config, err := s.current(hello)
	if err != nil {
		return nil, err
	}
	return &config.Certificates[0], nil
}

func (c content) server(pairs []tls.Certificate) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, Certificates: pairs}
	var err error
	if config.ClientCAs, err = c.authorities(); err != nil {
		return nil, err
	}
	if config.ClientCAs != nil {
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return config, nil
}
