package tlsfiles

import (
	"crypto/x509"
	"fmt"
	"time"
)

// outOfTime says that a certificate of a file is not valid at a time; nil if it is.
func outOfTime(c *x509.Certificate, path string, now time.Time) error {
	switch {
	case now.Before(c.NotBefore):
		return fmt.Errorf("the certificate in cert_file %s is not valid before %s: set this machine's clock, or have another one issued", path, c.NotBefore.UTC().Format(time.RFC3339))
	case now.After(c.NotAfter):
		return fmt.Errorf("the certificate in cert_file %s has expired, it was valid until %s: have it renewed", path, c.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

// Valid is from when until when the own certificate is. Its error is that of files that cannot be used.
func (f Files) Valid() (from, until time.Time, err error) {
	content, err := f.read()
	if err != nil {
		return from, until, err
	}
	pairs, err := content.certificates()
	if err != nil || len(pairs) == 0 {
		return from, until, err
	}
	return pairs[0].Leaf.NotBefore, pairs[0].Leaf.NotAfter, nil
}
