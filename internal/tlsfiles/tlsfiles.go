// Package tlsfiles makes TLS configurations from files that may be replaced at any time, and says of a handshake that failed what is
// wrong with which of them.
//
// Nothing needs a restart: a client reads its files for each connection, a listener for each handshake. While the files of a listener cannot
// be used, as when a certificate is there and its key not yet, or has expired, it goes on with the last that could; a client's connection fails,
// and its owner tries again. At least TLS 1.2.
package tlsfiles

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// maxFile bounds a file.
const maxFile = 4 << 20

// Files are one side of a connection. The zero value is a client that trusts the system's authorities and shows no certificate.
type Files struct {
	// CA holds the authorities of the other side's certificate, in PEM form. Default: a client trusts the system's, a listener asks for no
	// certificate.
	CA string
	// Cert and Key are the own certificate, with the intermediate ones after it, and its private key, in PEM form. Default: a client shows none;
	// a listener needs both.
	Cert, Key string
	// ServerName is what a client expects in the server's certificate. Default: the host that it connects to.
	ServerName string
	// ServerNameKey is what sets ServerName, for advice, such as "amqp.server_name". Default: nothing does.
	ServerNameKey string
	// ReadFile reads a file, like os.ReadFile. Default: from the disk, up to 4 MiB.
	ReadFile func(path string) ([]byte, error)
	// Now is the clock by which own certificates are valid or not. Default: time.Now.
	Now func() time.Time
}

// Client is for one connection: files that are replaced count from the next one, for which it is to be called again. Without ServerName the
// caller sets that of the host. Its errors name the file.
func (f Files) Client() (*tls.Config, error) {
	content, err := f.read()
	if err != nil {
		return nil, err
	}
	return content.client(f.ServerName)
}

// Check reads the files as Client and Server do, and returns what is wrong with them.
func (f Files) Check() error {
	_, err := f.Client()
	return err
}

// content is what the files hold, and their names.
type content struct {
	files         Files
	ca, cert, key []byte
}

func (f Files) read() (c content, err error) {
	c.files = f
	if (f.Cert == "") != (f.Key == "") {
		return c, errors.New("cert_file and key_file belong together: set both or none of them")
	}
	for _, one := range []struct {
		key, path string
		into      *[]byte
	}{{"ca_file", f.CA, &c.ca}, {"cert_file", f.Cert, &c.cert}, {"key_file", f.Key, &c.key}} {
		if one.path == "" {
			continue
		}
		if *one.into, err = f.readFile(one.path); err != nil {
			return c, fmt.Errorf("%s cannot be read: %w", one.key, err)
		}
	}
	return c, nil
}

func (f Files) readFile(path string) ([]byte, error) {
	if f.ReadFile != nil {
		return f.ReadFile(path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s has more than %d MiB", path, maxFile>>20)
	}
	return data, err
}

func (c content) equal(other content) bool {
	return bytes.Equal(c.ca, other.ca) && bytes.Equal(c.cert, other.cert) && bytes.Equal(c.key, other.key)
}

func (c content) client(serverName string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: serverName}
	var err error
	if config.RootCAs, err = c.authorities(); err != nil {
		return nil, err
	}
	config.Certificates, err = c.certificates()
	return config, err
}

// authorities is nil without a file.
func (c content) authorities() (*x509.CertPool, error) {
	if c.files.CA == "" {
		return nil, nil //nolint:nilnil // crypto/tls takes it for the system's
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(c.ca) {
		return nil, fmt.Errorf("ca_file %s holds no certificate in PEM form", c.files.CA)
	}
	return pool, nil
}

// certificates says of a key only that it does not fit: no error may show anything of it.
func (c content) certificates() ([]tls.Certificate, error) {
	if c.files.Cert == "" {
		return nil, nil
	}
	pair, err := tls.X509KeyPair(c.cert, c.key)
	if err != nil {
		return nil, fmt.Errorf("cert_file %s and key_file %s are not a certificate and its key in PEM form: %w", c.files.Cert, c.files.Key, err)
	}
	return []tls.Certificate{pair}, nil
}
