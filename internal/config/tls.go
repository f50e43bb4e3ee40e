package config

import (
	"crypto/tls"
	"crypto/x509"
)

// TLS is the configuration for amqps and https that trusts the authorities of CAFile; nil means the system's
// defaults. Each call returns a copy of its own.
func (a AMQP) TLS() *tls.Config {
	if a.roots == nil {
		return nil
	}
	return &tls.Config{RootCAs: a.roots, MinVersion: tls.VersionTLS12}
}

// readAuthorities reads CAFile while the configuration is checked, so that a wrong path is a fault like any
// other.
func (r *reader) readAuthorities(src Sources, a *AMQP) {
	if a.CAFile == "" {
		return
	}
	pem, err := src.ReadFile(a.CAFile)
	if err != nil {
		r.wrong("amqp.ca_file", "cannot be read: %s", err)
		return
	}
	a.roots = x509.NewCertPool()
	if !a.roots.AppendCertsFromPEM(pem) {
		r.wrong("amqp.ca_file", "holds no certificate in PEM form")
	}
}
