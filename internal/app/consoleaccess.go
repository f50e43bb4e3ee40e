package app

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/surefoot-mq/surefoot/internal/access"
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/console"
	"github.com/surefoot-mq/surefoot/internal/tlsfiles"
)

// consoleAccess says who may reach the console, and how. Files are read when they are needed, so that they can be replaced.
func consoleAccess(c *config.Config, o *console.Options) error {
	section, login := c.Console, c.Console.Login
	proxies, err := section.Proxies()
	if err != nil {
		return fmt.Errorf("console.trusted_proxies %w", err)
	}
	o.Mask = section.Mask
	o.Files = tlsfiles.Files{CA: section.ClientCAFile, Cert: section.CertFile, Key: section.KeyFile}
	o.Access = access.Options{
		UsersFile: login.UsersFile, ReadFile: os.ReadFile, Header: access.Header{User: login.Header.User, Groups: login.Header.Groups},
		Mapping: access.Mapping{View: login.Roles.View, Operate: login.Roles.Operate, Admin: login.Roles.Admin},
		Proxies: proxies, PublicURL: section.PublicURL, Idle: login.Idle, Absolute: login.Absolute,
	}
	if login.OIDC.Issuer == "" {
		return nil
	}
	client, err := providerClient(login.OIDC.CAFile)
	if err != nil {
		return err
	}
	o.Access.OIDC = access.OIDC{
		Issuer: login.OIDC.Issuer, ClientID: login.OIDC.ClientID, Scopes: login.OIDC.Scopes, NameClaim: login.OIDC.NameClaim, RoleClaim: login.OIDC.RoleClaim, Client: client,
	}
	if path := login.OIDC.ClientSecretFile; path != "" {
		o.Access.OIDC.Secret = func() (string, error) { return secretIn(path) }
		if _, err := secretIn(path); err != nil {
			return err
		}
	}
	return nil
}

// maxSecretFile bounds a file that holds a secret, and maxProviderAnswer what a provider may answer.
const (
	maxSecretFile     = 64 << 10
	maxProviderAnswer = 4 << 20
)

func secretIn(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read console.login.oidc.client_secret_file: %w", err)
	}
	if secret := strings.TrimSpace(string(text)); secret != "" && len(text) <= maxSecretFile {
		return secret, nil
	}
	return "", fmt.Errorf("console.login.oidc.client_secret_file: %s must hold one secret and nothing else", path)
}

// providerClient asks the login provider, which may be slow or send without end.
func providerClient(caFile string) (*http.Client, error) {
	files := tlsfiles.Files{CA: caFile}
	trust, err := files.Client()
	if err != nil {
		return nil, fmt.Errorf("console.login.oidc.ca_file: %w", err)
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: trust, TLSHandshakeTimeout: 5 * time.Second, DisableKeepAlives: true, ForceAttemptHTTP2: true}
	return &http.Client{Timeout: 10 * time.Second, Transport: bounded{transport}}, nil
}

// bounded ends answers that have no end.
type bounded struct{ http.RoundTripper }

// RoundTrip is that of the transport.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		response.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(response.Body, maxProviderAnswer), response.Body}
	}
	return response, err //nolint:wrapcheck // the caller is http.Client
}
