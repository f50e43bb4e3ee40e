package testkit

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Authority signs certificates for a test.
type Authority struct {
	// File holds its certificate in PEM form.
	File string

	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// Certificate says what is in a certificate.
type Certificate struct {
	// Name is its common name, which a server takes for the user's. Default: "test".
	Name string
	// Hosts are the names and addresses that it is for. Default: 127.0.0.1 and localhost.
	Hosts []string
	// Expired is whether its time was over an hour ago, and Early whether it begins in an hour.
	Expired, Early bool
}

// Pair are the files of a certificate and its key. Other users of the machine can read them, for servers are other users.
type Pair struct{ Cert, Key string }

// NewAuthority makes an authority.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{key: newKey(t)}
	template := template(Certificate{Name: "test authority " + Name("ca")})
	template.IsCA, template.KeyUsage = true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	require.NoError(t, err)
	a.certificate, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	a.File = filepath.Join(sharedDir(t), "ca.pem")
	writePEM(t, a.File, "CERTIFICATE", der)
	return a
}

// Issue signs a certificate and writes it, with its key, into files of a new directory.
func (a *Authority) Issue(t testing.TB, c Certificate) Pair {
	t.Helper()
	dir := sharedDir(t)
	pair := Pair{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	a.IssueInto(t, pair, c)
	return pair
}

// IssueInto replaces the files of a pair by a new certificate.
func (a *Authority) IssueInto(t testing.TB, pair Pair, c Certificate) {
	t.Helper()
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, template(c), a.certificate, &key.PublicKey, a.key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	writePEM(t, pair.Cert, "CERTIFICATE", der)
	writePEM(t, pair.Key, "PRIVATE KEY", private)
}

func template(c Certificate) *x509.Certificate {
	if c.Name == "" {
		c.Name = "test"
	}
	if c.Hosts == nil {
		c.Hosts = []string{"127.0.0.1", "localhost"}
	}
	made := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: c.Name}, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if c.Expired {
		made.NotAfter = time.Now().Add(-time.Hour)
	}
	if c.Early {
		made.NotBefore = time.Now().Add(time.Hour)
	}
	for _, host := range c.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			made.IPAddresses = append(made.IPAddresses, ip)
		} else {
			made.DNSNames = append(made.DNSNames, host)
		}
	}
	return made
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return key
}

// sharedDir is a directory of the test's own where the users of servers may look.
func sharedDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "surefoot-tls-") //nolint:usetesting // t.TempDir is closed to the servers' users
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o644))
}
