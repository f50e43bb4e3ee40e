package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
)

// Explain adds to the error of a client's connection to host what is wrong and what to do, naming the files. It leaves alone what has nothing to
// do with TLS, and nil.
func (f Files) Explain(err error, host string) error {
	if advice := f.advice(err, host); advice != "" {
		return fmt.Errorf("%w: %s", err, advice)
	}
	return err
}

func (f Files) advice(err error, host string) string {
	if err == nil {
		return ""
	}
	if advice := f.refused(err, host); advice != "" {
		return advice
	}
	if alert := alertOf(err); alert != "" {
		return f.refusedHere(alert, host)
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return host + " speaks no TLS on this port: give the port of its TLS listener, or a URL without TLS"
	}
	return otherProtocol(err, host)
}

// otherProtocol knows from the text of net/http, which has no type for it, what answered a request that is not of its protocol.
func otherProtocol(err error, host string) string {
	text := err.Error()
	switch {
	case errors.Is(err, http.ErrSchemeMismatch), strings.Contains(text, http.ErrSchemeMismatch.Error()):
		return host + " speaks no TLS on this port: give the port of its TLS listener, or write http:// in the URL"
	case strings.Contains(text, `malformed HTTP response "\x15\x03`):
		return host + " speaks TLS on this port: write https:// in the URL"
	case strings.Contains(text, `malformed HTTP response "AMQP`):
		return host + " speaks AMQP on this port: give the one of HTTP"
	}
	return ""
}

// refused explains why the server's certificate was not taken.
func (f Files) refused(err error, host string) string {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return fmt.Sprintf("the certificate of %s is signed by none of the authorities in %s: name the file of its authority as ca_file", host, f.trusted())
	}
	if name, ok := errors.AsType[x509.HostnameError](err); ok {
		advice := fmt.Sprintf("the certificate is for %s and not for %s: connect by one of its names", namesOf(name.Certificate), name.Host)
		if f.ServerNameKey != "" {
			advice += ", or set " + f.ServerNameKey + " to one"
		}
		return advice
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired && invalid.Cert != nil {
		return fmt.Sprintf("the certificate of %s, or of its authority, is valid from %s to %s: have it renewed, or set this machine's clock",
			host, invalid.Cert.NotBefore.UTC().Format(time.RFC3339), invalid.Cert.NotAfter.UTC().Format(time.RFC3339))
	}
	return ""
}

func (f Files) trusted() string {
	if f.CA == "" {
		return "the system's store"
	}
	return f.CA
}

// maxNames bounds how many of a certificate's names are told.
const maxNames = 5

func namesOf(c *x509.Certificate) string {
	names := append([]string(nil), c.DNSNames...)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) > maxNames {
		names = append(names[:maxNames], "and others")
	}
	if len(names) == 0 {
		return "no host at all (it has no subject alternative name)"
	}
	return fmt.Sprintf("%q", strings.Join(names, ", "))
}

// alertOf is what the other side said as it gave up; crypto/tls tells it only as text.
func alertOf(err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" && op.Err != nil {
		return strings.TrimPrefix(op.Err.Error(), "tls: ")
	}
	return ""
}

// refusedHere explains why the server did not take this side's certificate.
func (f Files) refusedHere(alert, host string) string {
	own := "the certificate in " + f.Cert
	switch {
	case f.Cert == "" && (alert == "certificate required" || alert == "bad certificate" || alert == "handshake failure"):
		return host + " wants a client certificate: set cert_file and key_file"
	case alert == "expired certificate":
		return own + " has expired: have it renewed"
	case alert == "unknown certificate authority", alert == "certificate required":
		return host + " does not trust " + own + ": have it signed by an authority that " + host + " trusts for clients"
	case alert == "bad certificate", alert == "unsupported certificate", alert == "revoked certificate", alert == "unknown certificate", alert == "access denied":
		return host + " refuses " + own + ": see its log"
	case alert == "protocol version not supported":
		return host + " speaks no TLS 1.2 or newer, which is asked for here"
	case alert == "unrecognized name":
		return host + " does not know the name that it was asked for: connect by another one"
	}
	return ""
}
